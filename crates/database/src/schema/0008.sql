-- What happened to an experiment since its state machine was last written down whole: read back in this order, it leads
-- to where the experiment stands.
CREATE TABLE experiment_events (
    experiment_id BIGINT NOT NULL REFERENCES experiments (id),
    number BIGINT NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (experiment_id, number)
);
