//! Reads a properties file and `--set` pairs into [`Settings`].
//!
//! Order: defaults, then the file, then `--set` in the order given; the last one wins.

use crate::elsewhere::PULSAR_KEYS_WITHOUT_MEANING;
use crate::kind::{Kind, items};
use crate::nearest::nearest;
use crate::table::{Key, Setting, TABLE};
use meridian_types::{Classify, ErrorClass};
use std::collections::BTreeMap;
use std::fmt;

/// What ends a start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The value does not fit the key.
    #[error("{origin}: {key}={value}: expected {expected}")]
    BadValue {
        /// File and line, or `--set`.
        origin: String,
        /// The key.
        key: String,
        /// The value as given.
        value: String,
        /// What would be right.
        expected: String,
    },
    /// A line that is no `key=value`.
    #[error("{origin}: expected key=value, found: {text}")]
    NoPair {
        /// File and line, or `--set`.
        origin: String,
        /// The text.
        text: String,
    },
    /// The file can't be read.
    #[error("configuration file {path}: {reason}")]
    Unreadable {
        /// Its path.
        path: String,
        /// Why.
        reason: String,
    },
}

impl Classify for SettingsError {
    fn class(&self) -> ErrorClass {
        ErrorClass::Caller
    }
}

/// Something that the operator should know but that does not end the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A setting of Pulsar's that has no meaning here.
    WithoutMeaning {
        /// File and line, or `--set`.
        origin: String,
        /// The key.
        key: String,
    },
    /// A key nobody knows.
    Unknown {
        /// File and line, or `--set`.
        origin: String,
        /// The key.
        key: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::WithoutMeaning { origin, key } => {
                write!(f, "{origin}: {key} is a Pulsar setting without meaning here; it has no effect")
            }
            Notice::Unknown { origin, key, nearest: Some(near) } => {
                write!(f, "{origin}: {key} is not a known setting; did you mean {near}?")
            }
            Notice::Unknown { origin, key, nearest: None } => write!(f, "{origin}: {key} is not a known setting"),
        }
    }
}

/// All settings with their values.
#[derive(Debug, Clone)]
pub struct Settings {
    values: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { values: TABLE.iter().map(|setting| setting.default.to_owned()).collect() }
    }
}

impl Settings {
    /// Reads the text of a properties file; `origin` names it in messages.
    ///
    /// # Errors
    /// [`SettingsError`] for the first line that is no pair or the first value that does not fit.
    pub fn read_text(&mut self, origin: &str, text: &str) -> Result<Vec<Notice>, SettingsError> {
        let mut notices = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') || line.starts_with('!') {
                continue;
            }
            notices.extend(self.apply(&format!("{origin}:{}", number + 1), line, true)?);
        }
        Ok(notices)
    }

    /// Applies one `key=value`. An empty value stands for the default, except that nobody who types `clusterName=` means it.
    ///
    /// # Errors
    /// [`SettingsError`] if it is no pair or the value does not fit.
    pub fn set_pair(&mut self, origin: &str, pair: &str) -> Result<Option<Notice>, SettingsError> {
        self.apply(origin, pair, false)
    }

    fn apply(&mut self, origin: &str, pair: &str, in_file: bool) -> Result<Option<Notice>, SettingsError> {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(SettingsError::NoPair { origin: origin.to_owned(), text: pair.to_owned() });
        };
        let (key, value) = (key.trim(), value.trim());
        if let Some((at, setting)) = TABLE.iter().enumerate().find(|(_, setting)| setting.name == key) {
            // Pulsar's files leave what has a default empty; only a port is turned off that way.
            let kept = setting.kind == Kind::Port || (setting.kind == Kind::Name && !in_file);
            let value = if value.is_empty() && !kept { setting.default } else { value };
            setting.check(value).map_err(|expected| SettingsError::BadValue {
                origin: origin.to_owned(),
                key: key.to_owned(),
                value: shown(setting, value),
                expected,
            })?;
            self.values[at] = value.to_owned();
            return Ok(None);
        }
        let (origin, key) = (origin.to_owned(), key.to_owned());
        if PULSAR_KEYS_WITHOUT_MEANING.binary_search(&key.as_str()).is_ok() {
            return Ok(Some(Notice::WithoutMeaning { origin, key }));
        }
        let near = nearest(&key, TABLE.iter().map(|setting| setting.name)).map(str::to_owned);
        Ok(Some(Notice::Unknown { origin, key, nearest: near }))
    }

    /// The same with values that were changed while the broker runs, and what was wrong with those that are passed over:
    /// no setting, none that can change, or a value that does not fit.
    pub fn with_live(&self, values: &BTreeMap<String, String>) -> (Self, Vec<String>) {
        let (mut changed, mut refused) = (self.clone(), Vec::new());
        for (key, value) in values {
            match TABLE.iter().find(|setting| setting.name == key) {
                Some(setting) if setting.reloadable => {
                    // As Pulsar reads them: whatever is not "true" is false.
                    let value = match setting.kind {
                        Kind::Switch if value.eq_ignore_ascii_case("true") => "true",
                        Kind::Switch => "false",
                        _ => value.as_str(),
                    };
                    if let Err(error) = changed.set_pair("live", &format!("{key}={value}")) {
                        refused.push(error.to_string());
                    }
                }
                Some(_) => refused.push(format!("{key} can't change while the broker runs")),
                None => refused.push(format!("{key} is not a known setting")),
            }
        }
        (changed, refused)
    }

    /// Checks values that depend on each other.
    ///
    /// # Errors
    /// The first that does not fit, with the other one.
    pub fn check(&self) -> Result<(), SettingsError> {
        let (low, high) = (Key::DiskUsageLwmThreshold, Key::DiskUsageThreshold);
        if self.is_set(low) && self.decimal(low) > self.decimal(high) {
            let setting = &TABLE[low as usize];
            return Err(SettingsError::BadValue {
                origin: "settings".to_owned(),
                key: setting.name.to_owned(),
                value: self.text(low).to_owned(),
                expected: format!("at most {}={}", TABLE[high as usize].name, self.text(high)),
            });
        }
        Ok(())
    }

    /// The value as text.
    pub fn text(&self, key: Key) -> &str {
        &self.values[key as usize]
    }

    /// All values as text, in the order of [`TABLE`].
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(String::as_str)
    }

    /// The value, or `None` if it is empty.
    pub fn optional(&self, key: Key) -> Option<&str> {
        Some(self.text(key)).filter(|value| !value.is_empty())
    }

    /// A switch.
    pub fn switch(&self, key: Key) -> bool {
        self.text(key) == "true"
    }

    /// A whole number; an empty value is 0.
    pub fn number(&self, key: Key) -> i64 {
        self.text(key).parse().unwrap_or_default()
    }

    /// A whole number that is not negative; negative ones and an empty value are 0.
    pub fn count(&self, key: Key) -> u64 {
        u64::try_from(self.number(key)).unwrap_or_default()
    }

    /// A decimal number.
    pub fn decimal(&self, key: Key) -> f64 {
        self.text(key).parse().unwrap_or_default()
    }

    /// A port, `None` if empty.
    pub fn port(&self, key: Key) -> Option<u16> {
        self.text(key).parse().ok()
    }

    /// Comma-separated items without blanks around them.
    pub fn list(&self, key: Key) -> Vec<String> {
        items(self.text(key)).map(str::to_owned).collect()
    }

    /// Whether the value is not the default.
    pub fn is_set(&self, key: Key) -> bool {
        self.text(key) != TABLE[key as usize].default
    }
}

/// Values of secret settings are not repeated in messages.
fn shown(setting: &Setting, value: &str) -> String {
    if matches!(setting.kind, Kind::Secret) { "(not shown)".to_owned() } else { value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_conf_is_read_with_notices() {
        let mut settings = Settings::default();
        let text = "# a comment\n\nbrokerServicePort=7650\nzookeeperServers=a:2181\nbrokerServicPort=1\n clusterName = west \n";
        let notices = settings.read_text("broker.conf", text).unwrap();
        assert_eq!(settings.port(Key::BrokerServicePort), Some(7650));
        assert_eq!(settings.text(Key::ClusterName), "west");
        assert!(settings.is_set(Key::ClusterName));
        assert_eq!(notices.len(), 2);
        assert_eq!(
            notices[0].to_string(),
            "broker.conf:4: zookeeperServers is a Pulsar setting without meaning here; it has no effect"
        );
        assert_eq!(
            notices[1].to_string(),
            "broker.conf:5: brokerServicPort is not a known setting; did you mean brokerServicePort?"
        );
    }

    #[test]
    fn a_bad_value_names_key_value_and_expectation() {
        let mut settings = Settings::default();
        let error = settings.set_pair("--set", "brokerServicePort=70000").unwrap_err();
        assert_eq!(
            error.to_string(),
            "--set: brokerServicePort=70000: expected a port from 0 to 65535 (0 = any free port), or nothing"
        );
        let error = settings.set_pair("--set", "brokerDeduplicationEnabled=yes").unwrap_err();
        assert_eq!(error.to_string(), "--set: brokerDeduplicationEnabled=yes: expected true or false");
        assert!(settings.set_pair("--set", "nonsense").is_err());
    }

    #[test]
    fn an_empty_value_is_the_default_and_an_empty_port_none() {
        let mut settings = Settings::default();
        let text =
            "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=\nclusterName=\ntokenAuthClaim=\nwebServicePort=\n";
        assert!(settings.read_text("broker.conf", text).unwrap().is_empty());
        assert_eq!(settings.count(Key::BrokerDeleteInactiveTopicsMaxInactiveDurationSeconds), 0);
        assert_eq!(settings.text(Key::ClusterName), "standalone");
        assert_eq!(settings.text(Key::TokenAuthClaim), "sub");
        assert_eq!(settings.port(Key::WebServicePort), None);
    }

    #[test]
    fn live_values_are_checked_like_others() {
        let settings = Settings::default();
        let of = |key: &str, value: &str| settings.with_live(&BTreeMap::from([(key.to_owned(), value.to_owned())]));
        let (changed, refused) = of("maxProducersPerTopic", "3");
        assert_eq!((changed.count(Key::MaxProducersPerTopic), refused), (3, Vec::new()));
        assert_eq!(
            of("maxProducersPerTopic", "x").1,
            ["live: maxProducersPerTopic=x: expected a whole number of things from 0"]
        );
        assert_eq!(of("clusterName", "x").1, ["clusterName can't change while the broker runs"]);
        assert_eq!(of("nonsense", "x").1, ["nonsense is not a known setting"]);
    }

    #[test]
    fn a_disk_threshold_is_a_share() {
        let mut settings = Settings::default();
        for bad in ["0", "95", "-1", "x"] {
            let error =
                settings.set_pair("broker.conf:7", &format!("diskUsageThreshold={bad}")).unwrap_err().to_string();
            let expected =
                format!("broker.conf:7: diskUsageThreshold={bad}: expected a share above 0 and at most 1, e.g. 0.95");
            assert_eq!(error, expected);
        }
        settings.set_pair("--set", "diskUsageThreshold=1").unwrap();
    }

    #[test]
    fn values_that_can_not_be_meant_end_the_start() {
        for (pair, expected) in [
            ("maxMessageSize=0", "a whole number of bytes from 1 to 2000000000"),
            ("maxMessageSize=4294967296", "a whole number of bytes from 1 to 2000000000"),
            ("httpMaxRequestSize=0", "a whole number from 1, or -1"),
            ("advertisedAddress=a b", "a host name or an IP address without a port, IPv6 in brackets"),
            ("advertisedListeners=xx", "name:pulsar://host:port or name:pulsar+ssl://host:port, separated by commas"),
            ("clusterName=", "1 to 128 letters, digits and any of _ - = : ."),
            ("clusterName=a/b", "1 to 128 letters, digits and any of _ - = : ."),
            ("keepAliveIntervalSeconds=0", "a whole number of seconds from 1"),
            ("maxConcurrentLookupRequest=0", "a whole number of things from 1"),
            ("gcWaitTime=99999999999999999", "a whole number of milliseconds up to 1000000000000"),
            ("numIOThreads=257", "a whole number of things from 0 to 256"),
            ("minorCompactionThreshold=1.5", "a decimal number from 0 to 1"),
            ("subscriptionTypesEnabled=shared", "any of Exclusive, Shared, Failover, Key_Shared, separated by commas"),
        ] {
            let error = Settings::default().set_pair("--set", pair).unwrap_err().to_string();
            assert_eq!(error, format!("--set: {pair}: expected {expected}"));
        }
        for off in
            ["brokerMaxConnections=0", "httpMaxRequestSize=-1", "defaultRetentionTimeInMinutes=-1", "numIOThreads=0"]
        {
            assert_eq!(Settings::default().set_pair("--set", off), Ok(None), "{off}");
        }
    }

    #[test]
    fn values_that_contradict_each_other_end_the_start() {
        let mut settings = Settings::default();
        settings.set_pair("--set", "diskUsageThreshold=0.5").unwrap();
        assert_eq!(settings.check(), Ok(()), "the lower one was not set");
        settings.set_pair("--set", "diskUsageLwmThreshold=0.6").unwrap();
        let error = settings.check().unwrap_err().to_string();
        assert_eq!(error, "settings: diskUsageLwmThreshold=0.6: expected at most diskUsageThreshold=0.5");
    }

    #[test]
    fn the_last_one_wins() {
        let mut settings = Settings::default();
        settings.set_pair("--set", "maxMessageSize=1000").unwrap();
        settings.set_pair("--set", "maxMessageSize=2000").unwrap();
        assert_eq!(settings.count(Key::MaxMessageSize), 2000);
    }
}
