//! Why a database cannot be migrated now.

/// Why a database cannot be migrated now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CannotMigrate {
    /// Another process is migrating.
    #[error("Another process is migrating '{database}': wait for it and run this again.")]
    Running {
        /// The database of the URL.
        database: String,
    },
    /// Workers are alive that could not read what is to be written from now on.
    #[error(
        "{workers} workers of version 0.1 are alive in '{database}', and they cannot read pages: stop them, and run this again."
    )]
    OldWorkers {
        /// The database of the URL.
        database: String,
        /// How many there are.
        workers: u64,
    },
    /// A table of the queue has rows, and there is no record of any migration.
    #[error(
        "The table '{table}' in '{database}' has rows, but queue_schema_migration says that no migration has run: restore that table together with the others."
    )]
    NotRecorded {
        /// The database of the URL.
        database: String,
        /// The table.
        table: String,
    },
}
