"""PostgreSQL: tables, repositories, unit of work, migrations."""
