//! Sends in, appends out, answers in order.

use super::{Answer, Producer, ProducerEffect, Producers, Unanswered};
use crate::api::{ProducerKey, Publish, Receipt, TopicError, TopicErrorKind};
use crate::dedup::{Sequence, Verdict};
use crate::origins::{Origin, OriginVerdict};
use meridian_managed_ledger::{AppendRequest, Appended};
use meridian_types::Position;
use meridian_wire::replicate::MARKER_RECEIPT;
use std::sync::Arc;

/// A send with what the shell found out about it.
#[derive(Debug, Clone)]
pub(crate) struct Send {
    pub(crate) publish: Publish,
    /// What deduplication looks at; `None` = nothing (markers).
    pub(crate) sequence: Option<Sequence>,
    /// Where a link's entry was first stored, if the link says so.
    pub(crate) origin: Option<Origin>,
    /// Who produced a link's entry, where producers are the same in all regions.
    pub(crate) author: Option<Arc<str>>,
    /// The shell's check refuses it.
    pub(crate) refusal: Option<Box<TopicError>>,
}

impl<S: Clone + PartialEq> Producers<S> {
    /// Takes a run of sends of one producer; what has to be appended, in order. An unknown producer's are dropped: it
    /// was told to close.
    pub(crate) fn publish(
        &mut self,
        key: ProducerKey,
        sends: Vec<Send>,
        now_us: u64,
        now_ms: u64,
    ) -> Vec<AppendRequest> {
        let Some(index) = self.index_of(key).filter(|index| self.list[*index].present()) else { return Vec::new() };
        if self.list[index].held {
            return Vec::new();
        }
        let mut appends = Vec::with_capacity(sends.len());
        for send in sends {
            let answer = self.decide(index, &send, now_ms);
            let Send { publish, sequence, origin, author, .. } = send;
            if let Answer::Append(token) = answer {
                let producer = &mut self.list[index];
                producer.counters.messages_in += u64::from(publish.messages);
                producer.counters.bytes_in += publish.payload.len() as u64;
                appends.push(AppendRequest {
                    payload: publish.payload,
                    messages: if publish.marker { 0 } else { publish.messages },
                    marker: publish.marker,
                    origin: origin.as_ref().map(Origin::parts),
                    token,
                });
            }
            let by_position = self.list[index].link.as_ref().is_some_and(|link| link.by_position);
            self.list[index].unanswered += 1;
            self.unanswered.push_back(Unanswered {
                key,
                answer,
                sequence_id: publish.sequence_id,
                highest_sequence_id: publish.highest_sequence_id,
                sequence,
                origin,
                author,
                by_position,
                marker: publish.marker,
                at_us: now_us,
            });
        }
        self.answer_decided();
        self.flush_receipts();
        appends
    }

    fn decide(&mut self, index: usize, send: &Send, now_ms: u64) -> Answer {
        let refusal = send.refusal.clone().or_else(|| self.misuse(index, send));
        if let (Some(origin), Some(origins)) = (&send.origin, &mut self.origins) {
            if let Some(error) = refusal {
                if origins.is_stored(origin) {
                    return Answer::Duplicate;
                }
                origins.turn_away(origin);
                return Answer::Refuse(error);
            }
            match origins.decide(origin, now_ms) {
                OriginVerdict::Store => {}
                OriginVerdict::Duplicate => return Answer::Duplicate,
                OriginVerdict::Unknown => return undetermined(),
                OriginVerdict::Behind(refused) => return behind(refused),
            }
        } else if let Some(error) = refusal {
            return Answer::Refuse(error);
        }
        let verdict = match (&mut self.dedup, send.sequence) {
            (Some(dedup), Some(sequence)) => match &send.author {
                Some(author) => dedup.decide_foreign(author, &sequence, now_ms),
                None => dedup.decide(&self.list[index].name, &sequence, now_ms),
            },
            _ => Verdict::Store,
        };
        match verdict {
            Verdict::Store => {
                self.next_token += 1;
                Answer::Append(self.next_token)
            }
            Verdict::Duplicate => Answer::Duplicate,
            Verdict::Unknown => {
                if let (Some(origin), Some(origins)) = (&send.origin, &mut self.origins) {
                    origins.refuse(origin);
                }
                undetermined()
            }
        }
    }

    /// What no client may send.
    fn misuse(&self, index: usize, send: &Send) -> Option<Box<TopicError>> {
        let publish = &send.publish;
        if publish.highest_sequence_id.is_some_and(|highest| highest < publish.sequence_id) {
            return Some(Box::new(TopicError::new(TopicErrorKind::Metadata, "Invalid lowest or highest sequence id")));
        }
        if publish.source.is_some() && self.list[index].link.is_none() {
            let message = "Only shadow topic supports sending messages with messageId";
            return Some(Box::new(TopicError::new(TopicErrorKind::NotAllowed, message)));
        }
        None
    }

    /// The log has confirmed entries, in append order (P1). Answers how long the first of them took.
    pub(crate) fn confirmed(&mut self, entries: &[Appended], now_us: u64) -> Option<u64> {
        let mut latency_us = None;
        for entry in entries {
            self.answer_decided();
            let Some(sent) = self.take(entry.token) else { continue };
            latency_us = latency_us.or(Some(now_us.saturating_sub(sent.at_us)));
            self.settle_origin(&sent);
            if let (Some(dedup), Some(sequence), Some(author)) = (&mut self.dedup, &sent.sequence, &sent.author) {
                dedup.confirm_foreign(author, sequence);
            }
            if let Some(index) = self.index_of(sent.key) {
                if let (Some(dedup), Some(sequence), None) = (&mut self.dedup, &sent.sequence, &sent.author) {
                    dedup.confirm(&self.list[index].name, sequence);
                }
                self.receipt(index, &sent, entry.position);
            }
        }
        if let Some(last) = entries.last() {
            self.confirmed_to = self.confirmed_to.max(last.position);
            if let Some(origins) = &mut self.origins {
                origins.note_confirmed(entries.len() as u64);
            }
        }
        self.answer_decided();
        self.flush_receipts();
        latency_us
    }

    /// The log has refused appends, or does not know their outcome (P4): their producers have to come back. Those of a
    /// topic that was terminated are told when they do; an answer before would cut some clients off from being told.
    pub(crate) fn failed(&mut self, tokens: &[u64], error: &TopicError) {
        let terminated = error.kind == TopicErrorKind::TopicTerminated;
        let mut broken: Vec<ProducerKey> = Vec::new();
        for token in tokens {
            self.answer_decided();
            let Some(sent) = self.take(*token) else { continue };
            self.flush_receipts();
            if terminated {
                self.forget(&sent);
            } else {
                self.refuse(&sent, error.clone());
            }
            if let (Some(origin), Some(origins)) = (&sent.origin, &mut self.origins) {
                origins.refuse(origin);
            }
            if let (Some(dedup), Some(sequence), Some(author)) = (&mut self.dedup, &sent.sequence, &sent.author) {
                dedup.refuse_foreign(author, sequence);
            } else if let (Some(dedup), Some(sequence)) = (&mut self.dedup, &sent.sequence)
                && let Ok(index) = self.list.binary_search_by_key(&sent.key, |producer| producer.key)
            {
                dedup.refuse(&self.list[index].name, sequence);
            }
            if broken.last() != Some(&sent.key) && !broken.contains(&sent.key) {
                broken.push(sent.key);
            }
        }
        self.answer_decided();
        self.flush_receipts();
        for key in broken {
            self.close(key);
        }
        self.drop_answered();
    }

    /// The unanswered send of a token: the oldest one that waits for the log, unless an answer was lost.
    fn take(&mut self, token: u64) -> Option<Unanswered> {
        if self.unanswered.front().is_some_and(|sent| sent.answer == Answer::Append(token)) {
            return self.unanswered.pop_front();
        }
        let index = self.unanswered.iter().position(|sent| sent.answer == Answer::Append(token))?;
        self.unanswered.remove(index)
    }

    /// Answers what stands in front of the queue and needs nothing from the log.
    fn answer_decided(&mut self) {
        while let Some(sent) = self.unanswered.pop_front_if(|sent| !matches!(sent.answer, Answer::Append(_))) {
            match &sent.answer {
                Answer::Refuse(error) => {
                    self.flush_receipts();
                    self.refuse(&sent, (**error).clone());
                }
                Answer::Duplicate | Answer::Append(_) => {
                    self.settle_origin(&sent);
                    if let Some(index) = self.index_of(sent.key) {
                        self.receipt(index, &sent, Position::EARLIEST);
                    }
                }
            }
        }
    }

    /// Everything sent before it is answered, and it is stored.
    fn settle_origin(&mut self, sent: &Unanswered) {
        if let (Some(origin), Some(origins)) = (&sent.origin, &mut self.origins) {
            origins.confirm(origin);
        }
    }

    /// A send that gets no answer, as its producer is closed.
    fn forget(&mut self, sent: &Unanswered) {
        if let Some(index) = self.index_of(sent.key) {
            self.list[index].unanswered -= 1;
        }
    }

    fn refuse(&mut self, sent: &Unanswered, error: TopicError) {
        let Some(index) = self.index_of(sent.key) else { return };
        let producer = &mut self.list[index];
        producer.unanswered -= 1;
        let sequence_id = sent.highest_sequence_id.unwrap_or(0).max(sent.sequence_id);
        let (sink, producer_id) = (producer.sink.clone(), producer.producer_id);
        self.effects.push_back(ProducerEffect::SendError { sink, producer_id, sequence_id, error });
    }

    fn receipt(&mut self, index: usize, sent: &Unanswered, position: Position) {
        let producer: &mut Producer<S> = &mut self.list[index];
        producer.unanswered -= 1;
        if producer.receipts.is_empty() {
            self.touched.push(producer.key);
        }
        let (sequence_id, highest_sequence_id) = receipt_ids(sent);
        producer.receipts.push(Receipt { sequence_id, highest_sequence_id, position });
    }

    /// One effect for each producer with answers.
    fn flush_receipts(&mut self) {
        for key in std::mem::take(&mut self.touched) {
            let Some(index) = self.index_of(key) else { continue };
            let producer = &mut self.list[index];
            let receipts = std::mem::take(&mut producer.receipts);
            let (sink, producer_id) = (producer.sink.clone(), producer.producer_id);
            self.effects.push_back(ProducerEffect::Receipts { sink, producer_id, receipts });
            self.drop_if_answered(index);
        }
    }

    fn drop_answered(&mut self) {
        for index in (0..self.list.len()).rev() {
            self.drop_if_answered(index);
        }
    }
}

fn undetermined() -> Answer {
    let message = "Cannot determine whether the message is a duplicate at this time";
    Answer::Refuse(Box::new(TopicError::new(TopicErrorKind::Persistence, message)))
}

/// Of a kind for which a Pulsar replicator gives up this entry alone and goes back to the refused one.
fn behind(refused: Position) -> Answer {
    let message = format!("The entry that the source stores at {refused} was refused and comes first");
    Answer::Refuse(Box::new(TopicError::new(TopicErrorKind::NotAllowed, message)))
}

/// What a receipt says: a link that matches by position gets the source position, and of a marker a sign of its own.
fn receipt_ids(sent: &Unanswered) -> (u64, u64) {
    if sent.by_position {
        if sent.marker {
            return (sent.sequence_id, MARKER_RECEIPT);
        }
        if let Some(origin) = &sent.origin {
            return (origin.position.ledger_id.0 as u64, origin.position.entry_id.0 as u64);
        }
    }
    (sent.sequence_id, sent.highest_sequence_id.unwrap_or(0))
}
