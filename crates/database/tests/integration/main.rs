//! The database through its public calls, each test with a file of its own, or a schema of a PostgreSQL server.

mod audit;
mod chunks;
mod copies;
mod history;
mod made;
mod managed;
mod metrics;
mod postgres;
mod templates;
mod trials;
