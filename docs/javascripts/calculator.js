// The form of calculator.md. The constants are held by tests/test_calculator_document.py.
"use strict";

// <constants>
const CONSTANTS = {
  "put_round": 12.0,
  "get_round": 60.0,
  "rest": 19.75,
  "rest_tick": 12.75,
  "rest_default": 125.0,
  "round_default": 479.575,
  "latency": 31.4444,
  "latency_request": 8.4556,
  "put_price": 0.005,
  "get_price": 0.0004,
  "gb_price": 0.023
};
// </constants>

const SECONDS_A_MONTH = 30.44 * 86400;

// The default of tick.interval.ms: between it and 1 s nothing was measured.
const DEFAULT_S = 0.05;

// Keys as in tests/test_calculator_document.py.
function cost(input, constants = CONSTANTS) {
  const rounds = input.busy / input.tick_s;
  const batches = Math.max(rounds * input.partitions, input.mib_s / 4);
  const files = (3 * batches * (constants.put_price + constants.get_price)) / 1000;
  const fixed =
    (constants.put_round * constants.put_price + constants.get_round * constants.get_price) / 1000;
  const rest =
    input.tick_s < 1
      ? constants.rest_default + constants.round_default * rounds
      : constants.rest + constants.rest_tick / input.tick_s + fixed * rounds * SECONDS_A_MONTH;
  const requests = rest + files * SECONDS_A_MONTH;
  const gigabytes = (input.mib_s * 1048576 * 86400 * input.retention_days * 3) / 1e9;
  const wait = input.tick_s >= 1 ? (input.tick_s * 1000) / 2 : 0;
  return {
    requests: requests,
    storage: gigabytes * constants.gb_price,
    latency_ms: constants.latency + constants.latency_request * input.request_ms + wait,
  };
}

const FIELDS = [
  ["tick_s", "tick.interval.ms, in seconds (0.05, the default, or at least 1)", 1, DEFAULT_S],
  ["busy", "share of the ticks with a record (0 to 1)", 1, 0],
  ["partitions", "partitions written to in such a tick", 4, 1],
  ["mib_s", "MiB/s, compressed", 0.1, 0],
  ["retention_days", "retention in days", 7, 0],
  ["request_ms", "latency of a request in ms", 30, 0],
];

function show(place) {
  const table = document.createElement("table");
  const inputs = {};
  for (const [name, label, value, least] of FIELDS) {
    const row = table.insertRow();
    const text = document.createElement("label");
    text.textContent = label;
    text.htmlFor = "calculator-" + name;
    const input = document.createElement("input");
    Object.assign(input, { id: "calculator-" + name, type: "number", min: least, step: "any" });
    input.value = value;
    input.style.cssText = "border:1px solid;padding:.2rem;width:6rem;color:inherit";
    row.insertCell().append(text);
    row.insertCell().append(input);
    inputs[name] = { input, least };
  }
  const result = document.createElement("p");
  result.id = "calculator-result";
  function update() {
    const values = {};
    for (const [name, { input, least }] of Object.entries(inputs)) {
      values[name] = Math.max(least, Number(input.value) || 0);
    }
    values.busy = Math.min(1, values.busy);
    if (values.tick_s < 1) values.tick_s = DEFAULT_S;
    const of = cost(values);
    result.textContent =
      `Requests: $${of.requests.toFixed(2)} a month; storage: $${of.storage.toFixed(2)} a month; ` +
      `acks=all, median: ${(of.latency_ms / 1000).toFixed(2)} s.`;
  }
  table.addEventListener("input", update);
  place.replaceChildren(table, result);
  update();
}

const place = document.getElementById("calculator");
if (place) show(place);
