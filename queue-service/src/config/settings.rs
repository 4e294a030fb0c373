use std::io::Write;
use std::process::ExitCode;

/// One setting that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name in the file; `--its-name` on the command line.
    pub name: String,
    /// Its value, as one would write it.
    pub value: String,
    /// `FILE:LINE`, the variable, the option, or `default`.
    pub from: String,
}

/// The settings of a process that have a value, and where each comes from.
#[derive(Debug, Clone, Default)]
pub struct Settings(pub(super) Vec<Setting>);

impl Settings {
    /// Where the setting comes from.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<&str> {
        self.get(name).map(|setting| setting.from.as_str())
    }

    /// The setting, if it has a value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.0.iter().find(|setting| setting.name == name)
    }

    /// An error about the setting `name`, with where that was set before it.
    pub fn refused(
        &self,
        name: &str,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> anyhow::Error {
        let place = self.place(name).unwrap_or("default").to_owned();
        anyhow::Error::new(error).context(place)
    }

    /// What `--check` prints: `first`, and each setting with where it comes from.
    ///
    /// # Errors
    /// When nobody reads standard output.
    pub fn show(&self, first: &[Setting]) -> anyhow::Result<ExitCode> {
        let rows: Vec<&Setting> = first.iter().chain(&self.0).collect();
        let width = |cell: fn(&Setting) -> &str| {
            rows.iter().map(|row| cell(row).chars().count()).max().unwrap_or_default()
        };
        let (names, values) = (width(|row| &row.name), width(|row| &row.value));
        let mut out = std::io::stdout().lock();
        for Setting { name, value, from } in rows {
            writeln!(out, "{name:names$}  {value:values$}  {from}")?;
        }
        writeln!(out, "The configuration is right; nothing was started.")?;
        Ok(ExitCode::SUCCESS)
    }
}
