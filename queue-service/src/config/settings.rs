use std::io::Write;
use std::process::ExitCode;

/// A setting and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name in the file; `--its-name` on the command line.
    pub name: String,
    /// Its value, as it would be written.
    pub value: String,
    /// `FILE:LINE`, the variable, the option, or `default`.
    pub from: String,
}

/// The settings of a process that have a value, and where each comes from.
#[derive(Debug, Clone, Default)]
pub struct Settings(pub(super) Vec<Setting>);

impl Settings {
    /// Returns where the setting comes from.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<&str> {
        self.get(name).map(|setting| setting.from.as_str())
    }

    /// Returns the setting, if it has a value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.0.iter().find(|setting| setting.name == name)
    }

    /// Makes an error about the setting `name`, preceded by the place where it was set.
    pub fn refused(
        &self,
        name: &str,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> anyhow::Error {
        let place = self.place(name).unwrap_or("default").to_owned();
        anyhow::Error::new(error).context(place)
    }

    /// Prints what `--check` shows: `first`, and each setting with where it comes from.
    ///
    /// # Errors
    /// If standard output is closed.
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
