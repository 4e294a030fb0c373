use std::str::FromStr;

use chrono::DateTime;
use queue_core::stream::Offset;
use queue_core::stream::group::Place;

/// A place in a stream, as people write it.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlaceText(pub(super) Place);

impl FromStr for PlaceText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = match text {
            "earliest" => Place::Earliest,
            "latest" => Place::Latest,
            _ => match (text.parse(), DateTime::parse_from_rfc3339(text)) {
                (Ok(offset), _) => Place::Offset(Offset(offset)),
                (_, Ok(time)) => Place::Time(time.to_utc()),
                _ => {
                    return Err(format!(
                        "'{text}' is no place in a stream: use earliest, latest, an offset, or a time as 2026-12-24T18:00:00Z"
                    ));
                }
            },
        };
        Ok(Self(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_word_an_offset_or_a_time() {
        let place = |text: &str| text.parse::<PlaceText>().map(|place| place.0);
        assert_eq!(place("earliest"), Ok(Place::Earliest));
        assert_eq!(place("17"), Ok(Place::Offset(Offset(17))));
        assert!(matches!(place("2026-12-24T18:00:00+01:00"), Ok(Place::Time(_))));
        for wrong in ["", "-1", "first", "2026-12-24"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }
}
