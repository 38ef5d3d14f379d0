"""Several masters on one PostgreSQL: one leads, the others pass requests on to it and take over."""
