-- What a single task does when its run has ended: it ends with it, or rests, or runs again.
ALTER TABLE commands ADD COLUMN after_run TEXT NOT NULL DEFAULT 'end';
