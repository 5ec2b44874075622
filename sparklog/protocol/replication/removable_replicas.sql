-- Replicas that a broker removes because a reassignment has removed them (rule 7.8): the partition
-- is not assigned to the log directory, and a record of the removal there names a leader epoch
-- above the last one of the replica (-1 without any). A replica that was assigned again later has
-- seen a later epoch. Without a record (null) nothing is removed.
-- takes replicas: topic_id string, partition int, is_assigned boolean, last_epoch int,
--   removed_in_epoch int?
-- gives: topic_id string, partition int
select topic_id, partition
from replicas
where not is_assigned and last_epoch < removed_in_epoch
