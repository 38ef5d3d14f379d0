-- For whom files are deleted: only what may be theirs is. NULL for what was given up before.
ALTER TABLE file_deletions ADD COLUMN user_id BIGINT REFERENCES users (id);
