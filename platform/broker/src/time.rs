//! Times as text.

/// `2026-01-31T12:34:56.789Z` for a time in ms since 1970.
pub fn iso(time_ms: u64) -> String {
    let (days, of_day_ms) = (time_ms / 86_400_000, time_ms % 86_400_000);
    let (year, month, day) = civil(days);
    let (hours, minutes, seconds) = (of_day_ms / 3_600_000, of_day_ms / 60_000 % 60, of_day_ms / 1_000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{:03}Z", of_day_ms % 1_000)
}

/// Year, month and day of a day since 1970-01-01, in eras of 400 years that begin on 1 March.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times() {
        assert_eq!(iso(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(iso(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(iso(1_785_500_096_789), "2026-07-31T12:14:56.789Z");
    }
}
