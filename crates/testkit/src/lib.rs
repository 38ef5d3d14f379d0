//! Development only: seeded simulation, waiting with deadlines, house rules as tests.
