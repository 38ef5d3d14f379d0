-- How far the batches of each reporter are stored, written with the batch itself, so that one that arrives twice is
-- stored once. The refusals of the last batch are kept for the answer that may have been lost.
CREATE TABLE reporters (
    id TEXT PRIMARY KEY,
    trial_id BIGINT NOT NULL REFERENCES trials (id),
    last_sequence BIGINT NOT NULL,
    refused TEXT NOT NULL
);
CREATE INDEX reporters_by_trial ON reporters (trial_id);
