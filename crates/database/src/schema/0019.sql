-- What was taken over from another cluster: its id there, and here. What stands here is not taken over again.
CREATE TABLE imported (
    cluster TEXT NOT NULL,
    kind TEXT NOT NULL,
    source_id TEXT NOT NULL,
    id BIGINT NOT NULL,
    PRIMARY KEY (cluster, kind, source_id)
);
