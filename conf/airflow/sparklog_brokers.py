"""Airflow DAGs of a cluster: its brokers every five minutes, and its maintenance every night.

Copy this file into Airflow's folder of DAGs. It is for Airflow 3 with the provider `standard`; the
machines of the workers need spark-submit, the files of `make bundle` and the configuration.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

BUNDLE = "/opt/sparklog"
CONFIGURATION = "/etc/sparklog"
VERSION = "0.1.0"
BROKERS = (0, 1, 2)

SUBMIT = (
    "spark-submit --master spark://spark-master:7077 --total-executor-cores 2 "
    "--packages io.delta:delta-spark_4.2_2.13:4.4.0 "
    f"--py-files {BUNDLE}/sparklog-{VERSION}-py-files.zip {BUNDLE}/sparklog-submit.py"
)
START = datetime(2026, 1, 1, tzinfo=timezone.utc)

# One DAG a broker: a broker that is slow delays no other one. A run is never started in parallel to
# another one of the same broker, and missed runs are not made up for.
for broker in BROKERS:
    arguments = f"broker --config {CONFIGURATION}/broker-{broker}.yaml --until-idle"
    with DAG(
        dag_id=f"sparklog_broker_{broker}",
        schedule=timedelta(minutes=5),
        start_date=START,
        catchup=False,
        max_active_runs=1,
        tags=["sparklog"],
    ) as dag:
        BashOperator(
            task_id="until_idle",
            bash_command=f"{SUBMIT} {arguments}",
            retries=2,
            retry_delay=timedelta(minutes=1),
        )
    globals()[dag.dag_id] = dag

with DAG(
    dag_id="sparklog_maintenance",
    schedule="17 3 * * *",
    start_date=START,
    catchup=False,
    max_active_runs=1,
    tags=["sparklog"],
) as maintenance:
    maintain = BashOperator(
        task_id="maintain",
        bash_command=f"{SUBMIT} maintain --cluster {CONFIGURATION}/cluster.yaml",
    )
    audit = BashOperator(
        task_id="audit",
        bash_command=f"{SUBMIT} audit --cluster {CONFIGURATION}/cluster.yaml --engine spark",
    )
    maintain >> audit

# A scrub goes on every night where the last one has ended; it fails if it finds damage.
with DAG(
    dag_id="sparklog_scrub",
    schedule="7 1 * * *",
    start_date=START,
    catchup=False,
    max_active_runs=1,
    tags=["sparklog"],
) as scrub:
    BashOperator(
        task_id="scrub",
        bash_command=f"{SUBMIT} scrub --cluster {CONFIGURATION}/cluster.yaml --spark --until 03:00",
    )
