use chrono::{DateTime, LocalResult, NaiveDateTime, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use serde::Serialize;

use crate::model::{Error, Result};

/// The longest pattern, in bytes.
const PATTERN_LIMIT: usize = 255;

/// Longer than any change of local clocks.
const SHIFT: TimeDelta = TimeDelta::hours(3);

/// A cron pattern in a time zone: the ticks of a schedule.
///
/// A pattern that names its hours (`30 2,14 * * *`) follows local time. Where clocks are set
/// forward, a tick at a skipped time comes right after the gap; where they are set back, a tick at
/// a repeated time comes once, the first time. A pattern whose hours are `*` or `*/n` keeps its
/// interval. Vixie cron does the same. croner does it only for patterns of one time a day, so it is
/// asked for local times, and the zone is handled here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Recurrence {
    /// As given.
    cron: String,
    #[serde(serialize_with = "zone_name")]
    time_zone: Tz,
    #[serde(skip)]
    pattern: Cron,
    /// Whether it names its hours.
    #[serde(skip)]
    by_the_wall: bool,
}

fn zone_name<S: serde::Serializer>(zone: &Tz, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(zone.name())
}

impl Recurrence {
    /// Reads a pattern of five fields (minute, hour, day of month, month, day of week), or six with
    /// the seconds before them, or one of `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`;
    /// and a time zone by its name in the IANA database, such as `Europe/Berlin` or `UTC`.
    ///
    /// # Errors
    /// [`Error::InvalidRecurrence`].
    pub fn new(cron: &str, time_zone: &str) -> Result<Self> {
        let refused = |what, text: &str, reason: String| Error::InvalidRecurrence {
            what,
            text: text.to_owned(),
            reason,
        };
        if cron.len() > PATTERN_LIMIT {
            let reason = format!("it is longer than {PATTERN_LIMIT} bytes");
            return Err(refused("The cron pattern", cron, reason));
        }
        let parser =
            CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let pattern = parser.parse(cron).map_err(|error| {
            let error = error.to_string();
            let reason = format!(
                "{}; a pattern is like '30 2 * * 1-5': minute, hour, day of month, month, day of week",
                error.trim_end_matches('.')
            );
            refused("The cron pattern", cron, reason)
        })?;
        let zone = time_zone.parse().map_err(|_| {
            let reason = "it is no name of the IANA database, like Europe/Berlin or UTC";
            refused("The time zone", time_zone, reason.to_owned())
        })?;
        let by_the_wall = names_its_hours(cron);
        Ok(Self { cron: cron.to_owned(), time_zone: zone, pattern, by_the_wall })
    }

    /// The pattern as it was given.
    #[must_use]
    pub fn cron(&self) -> &str {
        &self.cron
    }

    /// The name of the time zone.
    #[must_use]
    pub fn time_zone(&self) -> &'static str {
        self.time_zone.name()
    }

    /// A description of the pattern in words.
    #[must_use]
    pub fn describe(&self) -> String {
        self.pattern.describe()
    }

    /// Formats a time in the time zone, with its offset from UTC.
    #[must_use]
    pub fn local(&self, moment: DateTime<Utc>) -> String {
        moment.with_timezone(&self.time_zone).format("%F %T %:z").to_string()
    }

    /// The first tick after `moment`; `None` if there is none in the calendar.
    #[must_use]
    pub fn next_after(&self, moment: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let local = moment.with_timezone(&self.time_zone);
        if !self.by_the_wall {
            return Some(self.pattern.find_next_occurrence(&local, false).ok()?.to_utc());
        }
        let mut wall = (local.naive_local() - SHIFT).and_utc();
        loop {
            wall = self.pattern.find_next_occurrence(&wall, false).ok()?;
            let tick = self.moment_of(wall.naive_utc())?;
            if tick > moment {
                return Some(tick);
            }
        }
    }

    /// The last tick at or before `moment`.
    #[must_use]
    pub fn last_until(&self, moment: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let local = moment.with_timezone(&self.time_zone);
        if !self.by_the_wall {
            return Some(self.pattern.find_previous_occurrence(&local, true).ok()?.to_utc());
        }
        let mut wall = (local.naive_local() + SHIFT).and_utc();
        loop {
            wall = self.pattern.find_previous_occurrence(&wall, false).ok()?;
            let tick = self.moment_of(wall.naive_utc())?;
            if tick <= moment {
                return Some(tick);
            }
        }
    }

    /// When local clocks first show this time; if they skip it, when they have passed it. Clocks
    /// change at whole minutes.
    fn moment_of(&self, wall: NaiveDateTime) -> Option<DateTime<Utc>> {
        let mut shown = wall;
        loop {
            match self.time_zone.from_local_datetime(&shown) {
                LocalResult::Single(at) | LocalResult::Ambiguous(at, _) => {
                    return Some(at.to_utc());
                }
                LocalResult::None if shown - wall > SHIFT * 9 => return None,
                LocalResult::None => {
                    let minute = shown.and_utc().timestamp().div_euclid(60) + 1;
                    shown = DateTime::from_timestamp(minute * 60, 0)?.naive_utc();
                }
            }
        }
    }
}

/// Whether the hour field has no `*`. The nicknames name their hours, except `@hourly`.
fn names_its_hours(cron: &str) -> bool {
    let fields: Vec<&str> = cron.split_whitespace().collect();
    match fields.len() {
        1 => !cron.trim().eq_ignore_ascii_case("@hourly"),
        n => fields.get(n.saturating_sub(4)).is_some_and(|hours| !hours.contains('*')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(cron: &str, zone: &str, from: &str, n: usize) -> Vec<String> {
        let recurrence = Recurrence::new(cron, zone).expect("a recurrence");
        let from: DateTime<Utc> = from.parse().expect("a moment");
        std::iter::successors(recurrence.next_after(from), |tick| recurrence.next_after(*tick))
            .take(n)
            .map(|tick| tick.format("%m-%d %H:%M:%S").to_string())
            .collect()
    }

    #[test]
    fn a_daily_tick_comes_once_on_the_days_on_which_the_clock_is_changed() {
        // Forward on 29 March 2026: 02:30 does not exist, so the tick comes at 03:00, 01:00 UTC.
        let spring = ticks("30 2 * * *", "Europe/Berlin", "2026-03-27T12:00:00Z", 3);
        assert_eq!(spring, ["03-28 01:30:00", "03-29 01:00:00", "03-30 00:30:00"]);
        // Back on 25 October 2026: 02:30 comes twice.
        let autumn = ticks("30 2 * * *", "Europe/Berlin", "2026-10-23T12:00:00Z", 3);
        assert_eq!(autumn, ["10-24 00:30:00", "10-25 00:30:00", "10-26 01:30:00"]);
    }

    #[test]
    fn every_tick_of_a_pattern_that_names_its_hours_comes_once_on_those_days() {
        let spring = ticks("0,30 1-3 * * *", "Europe/Berlin", "2026-03-28T23:00:00Z", 5);
        let expected = ["03-29 00:00:00", "03-29 00:30:00", "03-29 01:00:00", "03-29 01:30:00"];
        assert_eq!(spring[..4], expected, "two and half past two come at three, together with it");
        assert_eq!(spring[4], "03-29 23:00:00");
        let autumn = ticks("30 2,14 * * *", "Europe/Berlin", "2026-10-24T20:00:00Z", 3);
        assert_eq!(autumn, ["10-25 00:30:00", "10-25 13:30:00", "10-26 01:30:00"]);
        let hours = ticks("0 1-4 * * *", "Europe/Berlin", "2026-10-24T20:00:00Z", 4);
        assert_eq!(hours, ["10-24 23:00:00", "10-25 00:00:00", "10-25 02:00:00", "10-25 03:00:00"]);
        let odd = ticks("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", 1);
        assert_eq!(odd, ["10-03 15:30:00"], "half an hour is left out, from two to half past two");
    }

    #[test]
    fn the_last_tick_is_found_on_both_sides_of_a_change() {
        let recurrence = Recurrence::new("30 2 * * *", "Europe/Berlin").expect("a recurrence");
        for (moment, last) in [
            ("2026-10-25T00:29:59Z", "2026-10-24T00:30:00Z"),
            ("2026-10-25T00:30:00Z", "2026-10-25T00:30:00Z"),
            ("2026-10-25T01:40:00Z", "2026-10-25T00:30:00Z"),
            ("2026-03-29T00:59:59Z", "2026-03-28T01:30:00Z"),
            ("2026-03-29T01:00:00Z", "2026-03-29T01:00:00Z"),
        ] {
            let (moment, last): (DateTime<Utc>, DateTime<Utc>) =
                (moment.parse().expect("a moment"), last.parse().expect("a moment"));
            assert_eq!(recurrence.last_until(moment), Some(last), "{moment}");
        }
    }

    #[test]
    fn ticks_at_a_distance_keep_it_when_the_clock_is_changed() {
        let spring = ticks("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:15:00Z", 4);
        assert_eq!(
            spring,
            ["03-29 00:30:00", "03-29 01:00:00", "03-29 01:30:00", "03-29 02:00:00"]
        );
        let autumn = ticks("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:15:00Z", 4);
        assert_eq!(
            autumn,
            ["10-25 00:30:00", "10-25 01:00:00", "10-25 01:30:00", "10-25 02:00:00"]
        );
    }

    #[test]
    fn seconds_names_and_last_days_are_understood() {
        let seconds = ticks("*/20 * * * * *", "UTC", "2026-01-01T00:00:00Z", 2);
        assert_eq!(seconds, ["01-01 00:00:20", "01-01 00:00:40"]);
        assert_eq!(ticks("0 9 L * *", "UTC", "2026-02-01T00:00:00Z", 1), ["02-28 09:00:00"]);
        assert_eq!(ticks("@daily", "UTC", "2026-02-01T00:00:00Z", 1), ["02-02 00:00:00"]);
        assert_eq!(ticks("0 9 * * MON", "UTC", "2026-11-21T00:00:00Z", 1), ["11-23 09:00:00"]);
    }

    #[test]
    fn the_last_tick_until_a_moment_may_be_the_moment() {
        let recurrence = Recurrence::new("0 * * * *", "UTC").expect("a recurrence");
        for (moment, last) in [
            ("2026-01-01T05:00:00Z", "2026-01-01T05:00:00Z"),
            ("2026-01-01T05:59:59Z", "2026-01-01T05:00:00Z"),
        ] {
            let (moment, last): (DateTime<Utc>, DateTime<Utc>) =
                (moment.parse().expect("a moment"), last.parse().expect("a moment"));
            assert_eq!(recurrence.last_until(moment), Some(last));
        }
    }

    #[test]
    fn what_cannot_be_read_is_one_sentence() {
        for (cron, zone, part) in [
            ("", "UTC", "The cron pattern '' cannot be used"),
            ("61 * * * *", "UTC", "minute, hour, day of month, month, day of week"),
            ("every day", "UTC", "The cron pattern 'every day'"),
            ("* * * * *", "Berlin", "The time zone 'Berlin' cannot be used"),
        ] {
            let error = Recurrence::new(cron, zone).expect_err(cron).to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_pattern_that_never_comes_has_no_next_tick() {
        let never = Recurrence::new("0 0 30 2 *", "UTC").expect("a pattern");
        assert_eq!(never.next_after("2026-01-01T00:00:00Z".parse().expect("a moment")), None);
    }
}
