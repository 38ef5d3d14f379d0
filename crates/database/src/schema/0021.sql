-- Several masters on one PostgreSQL: where the one that leads is reached by the others, with which certificate, and by
-- which secret of its term they know each other. It renews the row by the server's clock, as long as it can.
CREATE TABLE leader (
    name TEXT PRIMARY KEY,
    epoch BIGINT NOT NULL,
    address TEXT NOT NULL,
    tasks_address TEXT NOT NULL,
    certificate {bytes},
    peer_secret TEXT NOT NULL,
    settings TEXT NOT NULL,
    renewed_at BIGINT NOT NULL
);
