//! The SEND command read without building a message: the one command that comes once per entry.
//!
//! Invariants: W4 [`SendHeader::decode`] agrees with the generated decoder on every valid SEND; it allocates nothing.
//! Failure: [`FieldError`].
//! Must never know: what stands in the payload.

use crate::field::{FieldError, Fields};
use crate::proto::CommandSend;
use meridian_types::Position;

/// The id of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TxnId {
    /// The coordinator's half.
    pub most_bits: u64,
    /// The number that the coordinator gave.
    pub least_bits: u64,
}

/// A SEND command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendHeader {
    /// The client's id of the producer on this connection.
    pub producer_id: u64,
    /// Sequence id of the entry (of a batch: the lowest).
    pub sequence_id: u64,
    /// Highest sequence id of a batch, if the client gave one that is not zero.
    pub highest_sequence_id: Option<u64>,
    /// Messages that the client says are in the entry; 1 if it says nothing. Not checked: it may be zero or negative.
    pub num_messages: i32,
    /// The transaction, if both halves are given.
    pub txnid: Option<TxnId>,
    /// One part of a chunked message.
    pub is_chunk: bool,
    /// Written by a replicator or a broker, not by an application.
    pub marker: bool,
    /// The position in the source topic; only a shadow topic's replicator gives it.
    pub message_id: Option<Position>,
}

impl SendHeader {
    /// Reads the body of a SEND command.
    ///
    /// # Errors
    /// [`FieldError`] if the bytes are no protobuf, a field has a wrong type, or the producer or sequence id is missing.
    pub fn decode(body: &[u8]) -> Result<SendHeader, FieldError> {
        let (mut producer_id, mut sequence_id) = (None, None);
        let (mut txn_least, mut txn_most) = (None, None);
        let mut header = SendHeader {
            producer_id: 0,
            sequence_id: 0,
            highest_sequence_id: None,
            num_messages: 1,
            txnid: None,
            is_chunk: false,
            marker: false,
            message_id: None,
        };
        let mut fields = Fields::new(body);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => producer_id = Some(field.varint()?),
                2 => sequence_id = Some(field.varint()?),
                3 => header.num_messages = field.int32()?,
                4 => txn_least = Some(field.varint()?),
                5 => txn_most = Some(field.varint()?),
                6 => header.highest_sequence_id = Some(field.varint()?).filter(|&id| id > 0),
                7 => header.is_chunk = field.bool()?,
                8 => header.marker = field.bool()?,
                9 => header.message_id = Some(decode_position(field.bytes()?)?),
                _ => {}
            }
        }
        header.producer_id = producer_id.ok_or(FieldError::Missing("producer_id"))?;
        header.sequence_id = sequence_id.ok_or(FieldError::Missing("sequence_id"))?;
        header.txnid = txn_id(txn_most, txn_least);
        Ok(header)
    }
}

impl From<&CommandSend> for SendHeader {
    fn from(send: &CommandSend) -> Self {
        SendHeader {
            producer_id: send.producer_id,
            sequence_id: send.sequence_id,
            highest_sequence_id: send.highest_sequence_id.filter(|&id| id > 0),
            num_messages: send.num_messages(),
            txnid: txn_id(send.txnid_most_bits, send.txnid_least_bits),
            is_chunk: send.is_chunk(),
            marker: send.marker(),
            message_id: send.message_id.as_ref().map(|id| Position::new(id.ledger_id as i64, id.entry_id as i64)),
        }
    }
}

pub(crate) fn txn_id(most: Option<u64>, least: Option<u64>) -> Option<TxnId> {
    Some(TxnId { most_bits: most?, least_bits: least? })
}

fn decode_position(body: &[u8]) -> Result<Position, FieldError> {
    let (mut ledger, mut entry) = (None, None);
    let mut fields = Fields::new(body);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => ledger = Some(field.varint()?),
            2 => entry = Some(field.varint()?),
            _ => {}
        }
    }
    let ledger = ledger.ok_or(FieldError::Missing("ledgerId"))?;
    let entry = entry.ok_or(FieldError::Missing("entryId"))?;
    Ok(Position::new(ledger as i64, entry as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_without_ids_is_refused() {
        assert_eq!(SendHeader::decode(&[]), Err(FieldError::Missing("producer_id")));
        assert_eq!(SendHeader::decode(&[0x08, 0x01]), Err(FieldError::Missing("sequence_id")));
        let header = SendHeader::decode(&[0x08, 0x01, 0x10, 0x07]).unwrap();
        assert_eq!((header.producer_id, header.sequence_id, header.num_messages), (1, 7, 1));
        assert_eq!(header.txnid, None);
    }
}
