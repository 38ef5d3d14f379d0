-- Reports that come together share a row of the tail: from `step` to `last_step`, with a line `step time values` for
-- each of them. Rows of single reports have no `last_step`. No two rows of a group hold the same step.
ALTER TABLE metric_tail ADD COLUMN last_step BIGINT;
CREATE INDEX metric_tail_by_last_step ON metric_tail (trial_id, group_name, last_step) WHERE last_step IS NOT NULL;

-- Long chunks thinned out, for charts of many steps: there they say as much as the whole chunk.
CREATE TABLE metric_outlines (
    series_id BIGINT NOT NULL REFERENCES metric_series (id),
    number BIGINT NOT NULL,
    content {bytes} NOT NULL,
    PRIMARY KEY (series_id, number)
);
