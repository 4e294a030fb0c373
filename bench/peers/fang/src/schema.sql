-- The table as fang 0.11.0 makes it for MySQL (MIT licence, by its authors), from its
-- mysql_migrations/migrations/2023-08-17-102017_create_fang_tasks/up.sql, with `IF NOT EXISTS` and
-- the indexes inside.
CREATE TABLE IF NOT EXISTS fang_tasks (
    id BINARY(16) PRIMARY KEY,
    metadata JSON NOT NULL,
    error_message TEXT,
    state ENUM('new', 'in_progress', 'failed', 'finished', 'retried') NOT NULL DEFAULT 'new',
    task_type VARCHAR(255) NOT NULL DEFAULT 'common',
    uniq_hash VARCHAR(64),
    retries INTEGER NOT NULL DEFAULT 0,
    scheduled_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    updated_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    INDEX fang_tasks_state_index (state),
    INDEX fang_tasks_type_index (task_type),
    INDEX fang_tasks_scheduled_at_index (scheduled_at),
    INDEX fang_tasks_uniq_hash (uniq_hash)
)
