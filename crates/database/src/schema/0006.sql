-- Several reports in one row lie in columns, which are bytes; a single one stays JSON, and so do rows of earlier versions.
ALTER TABLE metric_tail ADD COLUMN content {bytes};
