use crate::name::name_type;

name_type! {
    /// A schedule's name: 1 to 64 of `A-Z a-z 0-9 . _ -`, compared byte for byte.
    ScheduleName
}
