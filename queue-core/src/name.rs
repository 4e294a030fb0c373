//! Names that people give: quoted nowhere, and alike in every log.

/// The longest name, in bytes.
pub(crate) const NAME_LIMIT: usize = 64;

/// Whether something may be called so: 1 to 64 of `A-Z a-z 0-9 . _ -`.
pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    !name.is_empty() && name.len() <= NAME_LIMIT && name.bytes().all(allowed)
}

/// Makes the type of the names of one kind of thing.
macro_rules! name_type {
    ($(#[$meta:meta])* $Name:ident) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord,
            serde::Serialize, serde::Deserialize,
        )]
        #[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
        #[serde(try_from = "String", into = "String")]
        pub struct $Name(String);

        impl $Name {
            /// Checks and takes a name.
            ///
            /// # Errors
            /// [`Error::InvalidName`](crate::Error::InvalidName) if it is empty, too long or has
            /// another character.
            pub fn new(name: impl Into<String>) -> crate::error::Result<Self> {
                let name = name.into();
                if crate::name::is_name(&name) {
                    Ok(Self(name))
                } else {
                    Err(crate::error::Error::InvalidName { name })
                }
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $Name {
            type Err = crate::error::Error;

            fn from_str(text: &str) -> crate::error::Result<Self> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $Name {
            type Error = crate::error::Error;

            fn try_from(name: String) -> crate::error::Result<Self> {
                Self::new(name)
            }
        }

        impl From<$Name> for String {
            fn from(name: $Name) -> Self {
                name.0
            }
        }
    };
}

pub(crate) use name_type;
