//! What values look like: kinds, ranges, and what is told of one that does not fit.
//!
//! Invariants: C4 no number that is taken overflows when it is changed to a smaller unit.
//! Failure: the text that stands behind "expected".

use meridian_types::name::{MAX_TENANT_BYTES, is_name};
use std::net::Ipv6Addr;

/// What a value must look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A name as tenants and clusters have it.
    Name,
    /// A host name or an address, without a port.
    Host,
    /// Text that is never shown.
    Secret,
    /// A path.
    Path,
    /// `true` or `false`.
    Switch,
    /// A TCP port or nothing.
    Port,
    /// Comma-separated items.
    List,
    /// Comma-separated words of these.
    Choices(&'static [&'static str]),
    /// Comma-separated `name:pulsar://host:port` or `name:pulsar+ssl://host:port`.
    Listeners,
    /// A whole number, also negative.
    Number,
    /// A whole number.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Minutes.
    Minutes,
    /// Milliseconds.
    Millis,
    /// A decimal number.
    Decimal,
    /// A decimal number, also negative.
    SignedDecimal,
    /// A share of a whole: above 0, at most 1.
    Share,
    /// One of some words.
    Choice(&'static [&'static str]),
}

/// Largest number of a kind that is counted in another unit (C4): 31,000 years in seconds, a million TiB in MiB.
const MAX_COUNT: i64 = 1_000_000_000_000;

/// Which numbers are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The smallest.
    pub from: i64,
    /// The largest.
    pub to: i64,
    /// One outside that stands for "off" or "without limit".
    pub off: Option<i64>,
}

impl Range {
    /// What a kind takes where nothing else is said.
    pub const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Number => Self { from: i64::MIN, to: i64::MAX, off: None },
            Kind::Bytes => Self { from: 0, to: i64::MAX, off: None },
            _ => Self { from: 0, to: MAX_COUNT, off: None },
        }
    }

    fn takes(self, number: i64) -> bool {
        (self.from..=self.to).contains(&number) || self.off == Some(number)
    }

    /// ` from 1 to 9, or -1`, as far as it is worth saying.
    pub(crate) fn told(self) -> String {
        let mut out = if self.from > i64::MIN { format!(" from {}", self.from) } else { String::new() };
        if self.to < MAX_COUNT {
            out.push_str(&format!(" to {}", self.to));
        }
        if let Some(off) = self.off {
            out.push_str(&format!(", or {off}"));
        }
        out
    }
}

impl Kind {
    /// Its name on the reference page.
    pub fn name(self) -> String {
        let name = match self {
            Kind::Text => "text",
            Kind::Name => "name",
            Kind::Host => "host",
            Kind::Secret => "secret",
            Kind::Path => "path",
            Kind::Switch => "true/false",
            Kind::Port => "port",
            Kind::List | Kind::Choices(_) | Kind::Listeners => "list",
            Kind::Number | Kind::Count => "number",
            Kind::Bytes => "bytes",
            Kind::Seconds => "seconds",
            Kind::Minutes => "minutes",
            Kind::Millis => "milliseconds",
            Kind::Decimal | Kind::SignedDecimal => "decimal",
            Kind::Share => "share",
            Kind::Choice(words) => return words.join(" / "),
        };
        name.to_owned()
    }

    /// Checks a value.
    pub(crate) fn check(self, value: &str, range: Range) -> Result<(), String> {
        let whole = |what: &str| match value.parse::<i64>() {
            Ok(number) if range.takes(number) => Ok(()),
            Ok(number) if number > MAX_COUNT && number > range.to => {
                Err(format!("a whole number{what} up to {}", range.to))
            }
            _ => Err(format!("a whole number{what}{}", range.told())),
        };
        let decimal = |fits: &dyn Fn(f64) -> bool, expected: String| match value.parse::<f64>() {
            Ok(number) if number.is_finite() && fits(number) => Ok(()),
            _ => Err(expected),
        };
        match self {
            Kind::Text | Kind::Secret | Kind::Path | Kind::List => Ok(()),
            Kind::Name if is_name(value) && value.len() <= MAX_TENANT_BYTES => Ok(()),
            Kind::Name => Err(format!("1 to {MAX_TENANT_BYTES} letters, digits and any of _ - = : .")),
            Kind::Host if is_host(value) => Ok(()),
            Kind::Host => Err("a host name or an IP address without a port, IPv6 in brackets".to_owned()),
            Kind::Switch if matches!(value, "true" | "false") => Ok(()),
            Kind::Switch => Err("true or false".to_owned()),
            Kind::Port if value.is_empty() || value.parse::<u16>().is_ok() => Ok(()),
            Kind::Port => Err("a port from 0 to 65535 (0 = any free port), or nothing".to_owned()),
            Kind::Listeners => check_listeners(value),
            Kind::Number => whole(""),
            Kind::Count => whole(" of things"),
            Kind::Bytes => whole(" of bytes"),
            Kind::Seconds => whole(" of seconds"),
            Kind::Minutes => whole(" of minutes"),
            Kind::Millis => whole(" of milliseconds"),
            Kind::Decimal => {
                let (from, to) = (range.from as f64, range.to as f64);
                decimal(&|number| (from..=to).contains(&number), format!("a decimal number{}", range.told()))
            }
            Kind::SignedDecimal => decimal(&|_| true, "a decimal number".to_owned()),
            Kind::Share => {
                decimal(&|number| number > 0.0 && number <= 1.0, "a share above 0 and at most 1, e.g. 0.95".to_owned())
            }
            Kind::Choices(words) if items(value).all(|item| words.contains(&item)) => Ok(()),
            Kind::Choices(words) => Err(format!("any of {}, separated by commas", words.join(", "))),
            Kind::Choice(words) if words.contains(&value) => Ok(()),
            Kind::Choice(words) => Err(format!("one of {}", words.join(", "))),
        }
    }
}

/// Items of a list without blanks around them.
pub(crate) fn items(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// A host name, an IPv4 address, or an IPv6 address in brackets.
fn is_host(text: &str) -> bool {
    if let Some(address) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    (1..=253).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn check_listeners(value: &str) -> Result<(), String> {
    let expected = || "name:pulsar://host:port or name:pulsar+ssl://host:port, separated by commas".to_owned();
    let mut seen = Vec::new();
    for item in items(value) {
        let (name, url) = item.split_once(':').filter(|(name, _)| is_name(name)).ok_or_else(expected)?;
        let (scheme, address) = url.split_once("://").ok_or_else(expected)?;
        let (host, port) = address.rsplit_once(':').ok_or_else(expected)?;
        let good = matches!(scheme, "pulsar" | "pulsar+ssl" | "http" | "https")
            && is_host(host)
            && port.parse().is_ok_and(|port: u16| port > 0);
        if !good {
            return Err(expected());
        }
        if seen.contains(&(name, scheme)) {
            return Err(format!("{name} once with {scheme}"));
        }
        seen.push((name, scheme));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(kind: Kind, value: &str) -> bool {
        kind.check(value, Range::of(kind)).is_ok()
    }

    #[test]
    fn names_are_those_of_tenants() {
        for good in ["west", "eu-west.1", "a=b:c_d", &"x".repeat(128)] {
            assert!(taken(Kind::Name, good), "{good}");
        }
        for bad in ["", "a/b", "a b", "a\tb", "ä", "a\0b", &"x".repeat(129)] {
            assert!(!taken(Kind::Name, bad), "{bad:?}");
        }
    }

    #[test]
    fn hosts_have_no_port_and_no_blank() {
        for good in ["localhost", "10.0.0.1", "broker-1.example.org", "a_b", "[::1]"] {
            assert!(taken(Kind::Host, good), "{good}");
        }
        for bad in ["", "a b", "host:6650", "http://host", "::1", "[a]", "h/x", &"x".repeat(254)] {
            assert!(!taken(Kind::Host, bad), "{bad:?}");
        }
    }

    #[test]
    fn listeners_have_a_name_a_scheme_a_host_and_a_port() {
        for good in ["", "a:pulsar://h:1", "a:pulsar://h:1,a:pulsar+ssl://h:2, b:pulsar://[::1]:3"] {
            assert!(taken(Kind::Listeners, good), "{good}");
        }
        for bad in
            ["xx", "a:pulsar://h", "a:grpc://h:1", ":pulsar://h:1", "a:pulsar://:1", "a:pulsar://h:0", "a:pulsar://h:x"]
        {
            let error = Kind::Listeners.check(bad, Range::of(Kind::Listeners)).unwrap_err();
            assert!(error.starts_with("name:pulsar://host:port"), "{bad}: {error}");
        }
        assert!(!taken(Kind::Listeners, "a:pulsar://h:1,a:pulsar://g:1"), "which one?");
    }

    #[test]
    fn ranges_say_what_they_take() {
        let range = Range { from: 1, to: 9, off: Some(-1) };
        for (value, fits) in
            [("1", true), ("9", true), ("-1", true), ("0", false), ("10", false), ("-2", false), ("", false)]
        {
            assert_eq!(Kind::Seconds.check(value, range).is_ok(), fits, "{value}");
        }
        let error = Kind::Seconds.check("0", range).unwrap_err();
        assert_eq!(error, "a whole number of seconds from 1 to 9, or -1");
        assert!(taken(Kind::Decimal, "0.5") && !taken(Kind::Decimal, "-0.1") && !taken(Kind::Decimal, "NaN"));
        assert!(!taken(Kind::Minutes, "9223372036854775807"), "it would overflow in milliseconds");
    }
}
