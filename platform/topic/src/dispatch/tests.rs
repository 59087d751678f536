//! Golden scripts of dispatch.

use super::harness::{Harness, TestEntry, at, limits};
use super::waiting::Waiting;
use super::{Chunk, DispatchLimits};
use crate::api::{ConsumerKey, KeySharedPolicy, SubscriptionType, TopicErrorKind};

#[test]
fn exclusive_delivers_in_order_within_permits() {
    let mut test = Harness::new(SubscriptionType::Exclusive);
    test.append(5);
    test.join(1, "a", 0).unwrap();
    assert!(test.took().is_empty(), "nothing before the first flow");
    assert_eq!(test.core.waiting(), Waiting::NoPermits);
    test.flow(1, 3);
    assert_eq!(test.took(), ["1 <- 0 1 2"]);
    test.flow(1, 10);
    assert_eq!(test.took(), ["1 <- 3 4"]);
    assert_eq!(test.core.waiting(), Waiting::Data);
    test.append(1);
    assert_eq!(test.took(), ["1 <- 5"]);
    let busy = test.join(2, "b", 0).unwrap_err();
    assert_eq!(busy.kind, TopicErrorKind::ConsumerBusy);
}

#[test]
fn exclusive_redelivers_from_the_first_unacked() {
    let mut test = Harness::new(SubscriptionType::Exclusive);
    test.append(4);
    test.join(1, "a", 0).unwrap();
    test.flow(1, 100);
    test.ack(1, 0);
    test.ack(1, 2);
    test.took();
    test.redeliver(1, &[]);
    assert_eq!(test.took(), ["1 <- 1 3"]);
}

#[test]
fn a_batch_is_never_split_so_permits_go_below_zero() {
    let mut test = Harness::new(SubscriptionType::Exclusive);
    test.join(1, "a", 0).unwrap();
    test.flow(1, 3);
    test.append_entry(TestEntry { messages: 10, ..TestEntry::default() });
    test.append(1);
    assert_eq!(test.took(), ["1 <- 0"]);
    assert_eq!(test.core.consumers()[0].permits, -7);
    test.flow(1, 7);
    assert!(test.took().is_empty());
    test.flow(1, 1);
    assert_eq!(test.took(), ["1 <- 1"]);
}

#[test]
fn an_answer_to_a_cancelled_read_is_ignored() {
    let mut test = Harness::new(SubscriptionType::Exclusive);
    test.append(3);
    test.join(1, "a", 0).unwrap();
    test.hold_reads = true;
    test.flow(1, 10);
    assert!(matches!(test.core.waiting(), Waiting::Reading { .. }));
    test.redeliver(1, &[]);
    assert_eq!(test.held.len(), 2, "the redelivery reads anew");
    test.release_reads();
    assert_eq!(test.took(), ["1 <- 0 1 2"]);
}

#[test]
fn failover_waits_for_the_delay_then_tells_and_delivers() {
    let mut test = Harness::new(SubscriptionType::Failover);
    test.append(3);
    test.join(1, "a", 0).unwrap();
    test.flow(1, 10);
    assert!(test.took().is_empty(), "nothing during the delay");
    assert_eq!(test.core.waiting(), Waiting::FailoverDelay);
    test.sleep();
    assert_eq!(test.took(), ["1 active", "1 <- 0 1 2"]);
    test.ack(1, 0);
    // A better priority takes over after the delay and gets what is not acked.
    test.join(2, "b", -1).unwrap();
    test.flow(2, 10);
    test.append(1);
    assert!(test.took().is_empty(), "D3: nobody gets anything during a switch");
    test.sleep();
    assert_eq!(test.took(), ["1 inactive", "2 active", "2 <- 1 2 3"]);
    test.join(3, "c", 5).unwrap();
    assert_eq!(test.took(), ["3 inactive"]);
    test.leave(2);
    test.sleep();
    assert_eq!(test.took(), ["1 active", "3 inactive", "1 <- 1 2 3"]);
}

#[test]
fn b080_two_idle_failover_consumers_one_gets_all() {
    let mut test = Harness::new(SubscriptionType::Failover);
    for (key, name) in [(1, "a"), (2, "b")] {
        test.join(key, name, 0).unwrap();
        test.flow(key, 1000);
    }
    test.sleep();
    test.append(100);
    let receivers: std::collections::BTreeSet<ConsumerKey> = test.delivered.iter().map(|(key, _)| *key).collect();
    assert_eq!((test.delivered.len(), receivers.len()), (100, 1));
}

#[test]
fn shared_goes_round_in_runs_and_keeps_to_permits() {
    let mut test =
        Harness::with_limits(SubscriptionType::Shared, DispatchLimits { round_robin_entries: 2, ..limits() });
    test.append(7);
    test.join(1, "a", 0).unwrap();
    test.join(2, "b", 0).unwrap();
    test.hold_reads = true;
    test.flow(1, 4);
    test.release_reads();
    assert_eq!(test.took(), ["1 <- 0 1 2 3"]);
    test.flow(2, 1);
    assert_eq!(test.took(), ["2 <- 4"]);
    test.flow(1, 1);
    test.flow(2, 5);
    assert_eq!(test.took(), ["1 <- 5", "2 <- 6"]);
}

#[test]
fn shared_prefers_the_better_priority_while_it_has_permits() {
    let mut test = Harness::new(SubscriptionType::Shared);
    test.join(1, "low", 1).unwrap();
    test.join(2, "high", 0).unwrap();
    test.flow(1, 10);
    test.flow(2, 2);
    test.append(4);
    assert_eq!(test.took(), ["2 <- 0", "2 <- 1", "1 <- 2", "1 <- 3"]);
}

#[test]
fn shared_replays_what_a_leaver_held_without_counting() {
    let mut test = Harness::new(SubscriptionType::Shared);
    test.append(3);
    test.join(1, "a", 0).unwrap();
    test.flow(1, 10);
    test.join(2, "b", 0).unwrap();
    test.flow(2, 10);
    test.ack(1, 1);
    test.took();
    test.leave(1);
    assert_eq!(test.took(), ["2 <- 0 2"]);
    test.leave(2);
    test.join(3, "c", 0).unwrap();
    test.flow(3, 10);
    assert_eq!(test.took(), ["3 <- 0 2"]);
}

#[test]
fn a_negative_ack_counts_until_the_ack() {
    let mut test = Harness::new(SubscriptionType::Shared);
    test.append(2);
    test.join(1, "a", 0).unwrap();
    test.flow(1, 10);
    test.took();
    test.redeliver(1, &[1]);
    assert_eq!(test.took(), ["1 <- 1r1"]);
    test.redeliver(1, &[]);
    assert_eq!(test.took(), ["1 <- 0r1 1r2"]);
    test.redeliver(1, &[7]);
    assert!(test.took().is_empty(), "an id that it does not hold means nothing");
    test.ack(1, 0);
    test.ack(1, 1);
    assert_eq!(test.core.unacked(), 0);
    test.redeliver(1, &[]);
    assert!(test.took().is_empty());
}

#[test]
fn an_ack_while_waiting_for_replay_cancels_it() {
    let mut test = Harness::new(SubscriptionType::Shared);
    test.append(2);
    test.join(1, "a", 0).unwrap();
    test.flow(1, 2);
    test.took();
    test.redeliver(1, &[]);
    assert!(test.took().is_empty(), "no permits");
    test.ack(1, 0);
    test.flow(1, 5);
    assert_eq!(test.took(), ["1 <- 1r1"]);
}

#[test]
fn an_ack_through_another_consumer_frees_the_holder() {
    let mut test = Harness::new(SubscriptionType::Shared);
    test.append(1);
    test.join(1, "a", 0).unwrap();
    test.join(2, "b", 0).unwrap();
    test.flow(1, 1);
    assert_eq!(test.core.consumers()[0].unacked, 1);
    test.ack(2, 0);
    assert_eq!(test.core.consumers()[0].unacked, 0);
}

#[test]
fn b077_the_blocked_state_follows_from_the_counters() {
    let limits = DispatchLimits { max_unacked_per_consumer: 10, ..limits() };
    let mut test = Harness::with_limits(SubscriptionType::Shared, limits);
    test.join(1, "a", 0).unwrap();
    test.flow(1, 1000);
    for _ in 0..4 {
        test.append_entry(TestEntry { messages: 9, ..TestEntry::default() });
    }
    assert_eq!(test.took(), ["1 <- 0", "1 <- 1"]);
    assert_eq!(test.core.waiting(), Waiting::ConsumerUnacked);
    test.ack_partly(1, 0, 4);
    test.ack_partly(1, 1, 2);
    assert!(test.took().is_empty(), "6 unacked are more than half");
    test.ack_partly(1, 0, 3);
    assert_eq!(test.took(), ["1 <- 2"]);
    for entry in 0..3 {
        test.ack(1, entry);
    }
    test.ack(1, 3);
    assert_eq!((test.core.unacked(), test.core.consumers()[0].blocked), (0, false));
}

#[test]
fn the_subscription_limit_blocks_and_unblocks_at_half() {
    let limits = DispatchLimits { max_unacked_per_subscription: 4, ..limits() };
    let mut test = Harness::with_limits(SubscriptionType::Shared, limits);
    test.join(1, "a", 0).unwrap();
    test.join(2, "b", 0).unwrap();
    test.flow(1, 100);
    test.flow(2, 100);
    test.append(6);
    assert_eq!(test.delivered.len(), 4);
    assert_eq!(test.core.waiting(), Waiting::SubscriptionUnacked);
    let holder = test.delivered[0].0;
    test.ack(holder.0, 0);
    assert_eq!(test.delivered.len(), 4);
    test.ack(1, 1);
    assert_eq!(test.delivered.len(), 6);
}

#[test]
fn a_stuck_client_does_not_stop_the_others() {
    let mut test = Harness::new(SubscriptionType::Shared);
    test.join(1, "a", 0).unwrap();
    test.join(2, "b", 0).unwrap();
    test.flow(1, 100);
    test.set_stuck(1, true);
    test.append(1);
    assert_eq!(test.took(), ["1 <- 0"]);
    test.append(1);
    assert!(test.took().is_empty());
    assert_eq!(test.core.waiting(), Waiting::NotWritable);
    test.flow(2, 1);
    assert_eq!(test.took(), ["2 <- 1"]);
    test.append(1);
    test.set_stuck(1, false);
    assert_eq!(test.took(), ["1 <- 2"]);
}

#[test]
fn all_parts_of_a_chunked_message_go_to_one_consumer() {
    let mut test =
        Harness::with_limits(SubscriptionType::Shared, DispatchLimits { round_robin_entries: 1, ..limits() });
    test.join(1, "a", 0).unwrap();
    test.join(2, "b", 0).unwrap();
    test.flow(1, 2);
    test.flow(2, 10);
    let part = |uuid: &str, id| TestEntry {
        messages: 1,
        chunk: Some(Chunk { uuid: uuid.into(), id, count: 3 }),
        ..TestEntry::default()
    };
    for (uuid, id) in [("x", 0), ("y", 0), ("x", 1), ("y", 1), ("x", 2), ("y", 2)] {
        test.append_entry(part(uuid, id));
    }
    assert_eq!(test.took(), ["1 <- 0", "2 <- 1", "1 <- 2", "2 <- 3", "2 <- 5"]);
    test.flow(1, 1);
    assert_eq!(test.took(), ["1 <- 4"], "the last part waited for the holder's permits");
}

#[test]
fn delayed_entries_wait_for_their_time_in_shared_only() {
    let mut test = Harness::new(SubscriptionType::Shared);
    test.join(1, "a", 0).unwrap();
    test.flow(1, 10);
    let due = test.now_ms + 5000;
    test.append_entry(TestEntry { messages: 1, deliver_at_ms: due, ..TestEntry::default() });
    test.append(1);
    assert_eq!(test.took(), ["1 <- 1"]);
    assert_eq!(test.core.delayed_entries(), 1);
    test.sleep();
    assert!(test.now_ms >= due && test.now_ms <= due + 1000);
    assert_eq!(test.took(), ["1 <- 0"]);
    let mut exclusive = Harness::new(SubscriptionType::Exclusive);
    exclusive.join(1, "a", 0).unwrap();
    exclusive.flow(1, 10);
    exclusive.append_entry(TestEntry { messages: 1, deliver_at_ms: due, ..TestEntry::default() });
    assert_eq!(exclusive.took(), ["1 <- 0"]);
}

#[test]
fn what_is_read_between_its_time_and_the_tick_does_not_pass_what_waits_for_the_same_time() {
    let mut test = Harness::new(SubscriptionType::Shared);
    test.join(1, "a", 0).unwrap();
    test.flow(1, 10);
    // The tick is a second: due at the half, delivered at the whole.
    let due = test.now_ms / 1000 * 1000 + 1500;
    let part = || TestEntry { messages: 1, deliver_at_ms: due, ..TestEntry::default() };
    test.append_entry(part());
    test.now_ms = due + 100;
    test.append_entry(part());
    assert!(test.took().is_empty(), "parts of one message, of which the first was there before its time");
    test.sleep();
    assert_eq!(test.now_ms, due + 500);
    assert_eq!(test.took(), ["1 <- 0 1"]);
}

#[test]
fn b096_due_without_a_consumer_is_delivered_at_once_later() {
    let mut test = Harness::new(SubscriptionType::Shared);
    let due = test.now_ms + 5000;
    test.append_entry(TestEntry { messages: 1, deliver_at_ms: due, ..TestEntry::default() });
    test.join(1, "a", 0).unwrap();
    test.flow(1, 10);
    test.leave(1);
    test.now_ms += 20_000;
    test.join(2, "b", 0).unwrap();
    test.flow(2, 10);
    assert_eq!(test.took(), ["2 <- 0"]);
}

#[test]
fn the_dispatch_rate_pays_back_what_a_batch_took_too_much() {
    let limits = DispatchLimits { rate: (10, 0), ..limits() };
    let mut test = Harness::with_limits(SubscriptionType::Exclusive, limits);
    test.append(25);
    test.join(1, "a", 0).unwrap();
    test.flow(1, 100);
    assert_eq!(test.delivered.len(), 10);
    assert_eq!(test.core.waiting(), Waiting::DispatchRate);
    let start = test.now_ms;
    while test.delivered.len() < 25 {
        test.sleep();
    }
    assert!((1400..=1600).contains(&(test.now_ms - start)), "{}", test.now_ms - start);
}

#[test]
fn keys_stay_with_their_owner_and_a_moved_key_drains_first() {
    let mut test = Harness::new(SubscriptionType::KeyShared);
    // Hashes below 32768 go to the newcomer, see the selector.
    test.join(1, "a", 0).unwrap();
    test.flow(1, 100);
    test.append_keys(&[10, 40_000, 10]);
    assert_eq!(test.took(), ["1 <- 0", "1 <- 1", "1 <- 2"]);
    test.join(2, "b", 0).unwrap();
    test.flow(2, 100);
    test.append_keys(&[10, 20, 40_000]);
    assert_eq!(test.took(), ["2 <- 4", "1 <- 5"], "key 10 is unacked at 1: its new owner waits, others do not");
    assert_eq!(test.core.waiting(), Waiting::DrainingHashes);
    test.ack(1, 0);
    assert!(test.took().is_empty());
    test.ack(1, 2);
    assert_eq!(test.took(), ["2 <- 3"]);
}

#[test]
fn a_leavers_keys_are_replayed_before_newer_ones() {
    let mut test = Harness::new(SubscriptionType::KeyShared);
    test.join(1, "a", 0).unwrap();
    test.join(2, "b", 0).unwrap();
    test.flow(2, 100);
    test.append_keys(&[10, 10]);
    assert_eq!(test.took(), ["2 <- 0", "2 <- 1"]);
    test.leave(2);
    test.append_keys(&[10]);
    assert!(test.took().is_empty());
    test.flow(1, 100);
    assert_eq!(test.took(), ["1 <- 0 1", "1 <- 2"]);
}

#[test]
fn a_key_without_permits_does_not_stop_the_other_keys() {
    let mut test = Harness::new(SubscriptionType::KeyShared);
    test.join(1, "a", 0).unwrap();
    test.join(2, "b", 0).unwrap();
    test.flow(1, 100);
    test.append_keys(&[10, 40_000, 20, 50_000]);
    assert_eq!(test.took(), ["1 <- 1", "1 <- 3"]);
    test.flow(2, 1);
    assert_eq!(test.took(), ["2 <- 0"]);
    test.flow(2, 1);
    assert_eq!(test.took(), ["2 <- 2"]);
}

#[test]
fn sticky_ranges_without_owner_wait_for_one() {
    let mut test = Harness::new(SubscriptionType::KeyShared);
    let policy = |ranges: &[(u32, u32)]| KeySharedPolicy::Sticky { allow_out_of_order: false, ranges: ranges.to_vec() };
    test.join_with(1, "a", 0, Some(&policy(&[(0, 100)]))).unwrap();
    test.flow(1, 100);
    test.append_keys(&[10, 500, 20]);
    assert_eq!(test.took(), ["1 <- 0", "1 <- 2"]);
    let clash = test.join_with(2, "b", 0, Some(&policy(&[(50, 200)]))).unwrap_err();
    assert_eq!(clash.kind, TopicErrorKind::ConsumerAssign);
    let other = test.join(2, "b", 0).unwrap_err();
    assert_eq!(other.kind, TopicErrorKind::ConsumerBusy, "another mode than the one in force");
    test.join_with(2, "b", 0, Some(&policy(&[(101, 65535)]))).unwrap();
    test.flow(2, 100);
    assert_eq!(test.took(), ["2 <- 1"]);
}

#[test]
fn b074_a_poison_key_does_not_stop_the_others_nor_cost_reads() {
    let mut test = Harness::new(SubscriptionType::KeyShared);
    test.join(1, "good", 0).unwrap();
    test.flow(1, 100_000);
    test.append_keys(&[10]);
    for round in 0..20 {
        test.join(100 + round, "restarting", 0).unwrap();
        test.flow(100 + round, 1000);
        test.append_keys(&[10, 40_000, 50_000]);
        test.ack_all_but(10);
        test.leave(100 + round);
    }
    let others = test.delivered.iter().filter(|(_, position)| test.log[position.entry_id.0 as usize].key_hash != 10);
    assert_eq!(others.count(), 40);
    assert!(test.reads < 3 * test.delivered.len(), "{} reads for {} deliveries", test.reads, test.delivered.len());
}

#[test]
fn b075_opening_and_closing_loses_nothing() {
    let mut test = Harness::new(SubscriptionType::KeyShared);
    for key in 1..=3 {
        test.join(key, &format!("c{key}"), 0).unwrap();
        test.flow(key, 100_000);
    }
    for (next, round) in (4..).zip(0..200u32) {
        test.append_keys(&[round * 317 % 65_536, round * 7919 % 65_536]);
        let oldest = test.core.consumers()[0].key.0;
        test.leave(oldest);
        test.join(next, &format!("c{next}"), 0).unwrap();
        test.flow(next, 100_000);
        test.ack_held(2);
    }
    test.ack_held(usize::MAX);
    assert_eq!(test.acked.len(), test.log.len(), "everything was delivered to somebody who could ack it");
}

impl Harness {
    /// Acks everything held but the entries of one key.
    fn ack_all_but(&mut self, hash: u32) {
        let held: Vec<(u64, i64)> = self.held_entries();
        for (key, entry) in held {
            if self.log[entry as usize].key_hash != hash {
                self.ack(key, entry);
            }
        }
    }

    fn held_entries(&self) -> Vec<(u64, i64)> {
        let of = |consumer: &super::Consumer| {
            let key = consumer.key.0;
            consumer.pending.keys().map(move |position| (key, position.entry_id.0)).collect::<Vec<_>>()
        };
        self.core.consumers().iter().flat_map(of).collect()
    }

    /// Acks what is held, until nothing is or so many are.
    pub(super) fn ack_held(&mut self, max: usize) {
        let mut acked = 0;
        loop {
            let held = self.held_entries();
            if held.is_empty() || acked >= max {
                return;
            }
            for (key, entry) in held.into_iter().take(max - acked) {
                self.ack(key, entry);
                acked += 1;
            }
        }
    }
}

#[test]
fn what_others_acked_is_held_by_nobody() {
    let mut test = Harness::new(SubscriptionType::Shared);
    test.append(4);
    test.join(1, "a", 0).unwrap();
    test.flow(1, 2);
    test.took();
    for entry in 0..3 {
        test.acked.insert(at(entry));
    }
    let acked = test.acked.clone();
    test.core.purge(&|position| acked.contains(&position));
    test.core.skip_to(at(3));
    test.run();
    assert_eq!(test.core.unacked(), 0);
    test.flow(1, 10);
    assert_eq!(test.took(), ["1 <- 3"]);
}
