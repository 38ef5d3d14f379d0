-- What a token is good for: the agent that may use it, and the pool that its slots go to. NULL: any.
ALTER TABLE agent_tokens ADD COLUMN agent TEXT;
ALTER TABLE agent_tokens ADD COLUMN pool TEXT;
