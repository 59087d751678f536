//! What a storage node tells of itself while it runs.
//!
//! Format (value of `bookies/available/{id}`, gone with the node's session): one byte version (1), then a protobuf
//! message, see [`RegistrationProto`].
//! Invariants: A1 the key holds the id, which outlives addresses; A2 a place that is not said is not guessed; without a
//! zone the rack counts as one.
//! Failure: bytes that break a rule are [`MetadataError::Corrupt`]; unknown fields are skipped.
//! Must never know: sessions, sockets.

use bytes::{BufMut, Bytes, BytesMut};
use meridian_metadata::MetadataError;
use meridian_topology::Location;
use prost::Message;

/// Version of the format.
pub const REGISTRATION_VERSION: u8 = 1;
/// Bytes of a registration at most.
const REGISTRATION_BYTES_MAX: usize = 16 << 10;

/// See the head of this file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BookieRegistration {
    /// `host:port` of the data port.
    pub data_address: String,
    /// `host:port` of the control port (gRPC).
    pub control_address: String,
    /// The region that it stands in.
    pub region: Option<String>,
    /// The zone.
    pub zone: Option<String>,
    /// The rack within the zone.
    pub rack: Option<String>,
    /// Why it takes no ordinary adds; `None` = it takes them.
    pub read_only: Option<String>,
    /// Wall clock of its start in ms.
    pub started_ms: u64,
}

/// The stored message. Field numbers are for ever.
#[derive(Clone, PartialEq, Message)]
pub struct RegistrationProto {
    /// Data port.
    #[prost(string, tag = "1")]
    pub data_address: String,
    /// Control port.
    #[prost(string, tag = "2")]
    pub control_address: String,
    /// Region.
    #[prost(string, optional, tag = "3")]
    pub region: Option<String>,
    /// Zone.
    #[prost(string, optional, tag = "4")]
    pub zone: Option<String>,
    /// Rack.
    #[prost(string, optional, tag = "5")]
    pub rack: Option<String>,
    /// Why it is read-only.
    #[prost(string, optional, tag = "6")]
    pub read_only: Option<String>,
    /// Start, wall clock in ms.
    #[prost(uint64, tag = "7")]
    pub started_ms: u64,
}

fn corrupt(why: &str) -> MetadataError {
    MetadataError::Corrupt(format!("registration of a bookie: {why}"))
}

impl BookieRegistration {
    /// Where it stands, as placement counts (A2).
    pub fn location(&self) -> Location {
        Location { region: self.region.clone(), zone: self.zone.clone().or_else(|| self.rack.clone()) }
    }

    /// The stored form.
    pub fn encode(&self) -> Bytes {
        let proto = RegistrationProto {
            data_address: self.data_address.clone(),
            control_address: self.control_address.clone(),
            region: self.region.clone(),
            zone: self.zone.clone(),
            rack: self.rack.clone(),
            read_only: self.read_only.clone(),
            started_ms: self.started_ms,
        };
        let mut out = BytesMut::with_capacity(1 + proto.encoded_len());
        out.put_u8(REGISTRATION_VERSION);
        out.extend_from_slice(&proto.encode_to_vec());
        out.freeze()
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`MetadataError::Corrupt`] with the rule that the bytes break.
    pub fn decode(bytes: &[u8]) -> Result<Self, MetadataError> {
        if bytes.len() > REGISTRATION_BYTES_MAX {
            return Err(corrupt("it is too long"));
        }
        let (version, body) = bytes.split_first().ok_or_else(|| corrupt("empty"))?;
        if *version != REGISTRATION_VERSION {
            return Err(corrupt(&format!("version {version} is not known")));
        }
        let proto = RegistrationProto::decode(body).map_err(|error| corrupt(&error.to_string()))?;
        if proto.data_address.is_empty() {
            return Err(corrupt("it has no address"));
        }
        Ok(Self {
            data_address: proto.data_address,
            control_address: proto.control_address,
            region: proto.region,
            zone: proto.zone,
            rack: proto.rack,
            read_only: proto.read_only,
            started_ms: proto.started_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let registration = BookieRegistration {
            data_address: "h:1".into(),
            control_address: "h:2".into(),
            region: Some("w".into()),
            zone: Some("a".into()),
            rack: Some("r".into()),
            read_only: Some("full".into()),
            started_ms: 300,
        };
        let golden = [
            &[1u8][..],                                     // version
            &[0x0a, 3, b'h', b':', b'1'],                   // data
            &[0x12, 3, b'h', b':', b'2'],                   // control
            &[0x1a, 1, b'w', 0x22, 1, b'a', 0x2a, 1, b'r'], // region, zone, rack
            &[0x32, 4, b'f', b'u', b'l', b'l'],             // read-only
            &[0x38, 0xac, 0x02],                            // started
        ]
        .concat();
        assert_eq!(&registration.encode()[..], &golden[..]);
        assert_eq!(BookieRegistration::decode(&golden), Ok(registration));
    }

    #[test]
    fn the_rack_counts_as_the_zone_where_no_zone_is_said() {
        let mut one = BookieRegistration { rack: Some("r1".into()), ..BookieRegistration::default() };
        assert_eq!(one.location().to_string(), "/r1");
        one.zone = Some("a".into());
        one.region = Some("w".into());
        assert_eq!(one.location().to_string(), "/w/a");
    }

    #[test]
    fn what_breaks_a_rule_is_refused() {
        let nameless = BookieRegistration::default().encode();
        for bad in [&[][..], &[9, 0], &[1, 0xff], &nameless, &[1; REGISTRATION_BYTES_MAX + 1]] {
            assert!(matches!(BookieRegistration::decode(bad), Err(MetadataError::Corrupt(_))));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = BookieRegistration::decode(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = REGISTRATION_VERSION;
                if let Ok(one) = BookieRegistration::decode(&bytes) {
                    prop_assert_eq!(BookieRegistration::decode(&one.encode()), Ok(one));
                }
            }
        }
    }
}
