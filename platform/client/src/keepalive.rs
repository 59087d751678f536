//! Whether a connection is alive, as a pure machine.
//!
//! Invariants:
//! - K1 A connection on which nothing was heard for `interval_ms` is asked by a PING.
//! - K2 A PING that was handed to the socket and not followed by anything for `timeout_ms` is the end.
//! - K3 A PING that waits to be written while the socket takes no byte for `timeout_ms` is the end.
//! - K4 Anything that is heard counts as an answer: a peer that is busy with a long queue is alive.
//!
//! So a cut that drops packets silently is noticed after `interval_ms` + `timeout_ms` and one tick.
//! Must never know: clocks, sockets.

/// Limits of the silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAliveLimits {
    /// Silence after which the peer is asked.
    pub interval_ms: u64,
    /// How long an answer may take.
    pub timeout_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ping {
    None,
    Queued { at_ms: u64 },
    Written { at_ms: u64 },
}

/// What to do at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Wait,
    /// Send a PING.
    Ping,
    /// End the connection for this reason.
    Dead(&'static str),
}

/// The state of one connection; times are of one monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    limits: KeepAliveLimits,
    heard_ms: u64,
    progress_ms: u64,
    ping: Ping,
}

impl KeepAlive {
    /// The peer was heard at `now_ms`.
    pub fn new(limits: KeepAliveLimits, now_ms: u64) -> Self {
        Self { limits, heard_ms: now_ms, progress_ms: now_ms, ping: Ping::None }
    }

    /// Bytes came.
    pub fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
        self.ping = Ping::None;
    }

    /// The socket took bytes.
    pub fn progressed(&mut self, now_ms: u64) {
        self.progress_ms = now_ms;
    }

    /// The socket took the PING.
    pub fn ping_written(&mut self, now_ms: u64) {
        if matches!(self.ping, Ping::Queued { .. }) {
            self.ping = Ping::Written { at_ms: now_ms };
        }
    }

    /// Time passed.
    pub fn tick(&mut self, now_ms: u64) -> Action {
        let since = |at_ms: u64| now_ms.saturating_sub(at_ms);
        match self.ping {
            Ping::None if since(self.heard_ms) >= self.limits.interval_ms => {
                self.ping = Ping::Queued { at_ms: now_ms };
                Action::Ping
            }
            Ping::Queued { at_ms } if since(at_ms.max(self.progress_ms)) >= self.limits.timeout_ms => {
                Action::Dead("the peer takes no bytes and is silent")
            }
            Ping::Written { at_ms } if since(at_ms) >= self.limits.timeout_ms => {
                Action::Dead("the peer is silent: no answer to PING")
            }
            _ => Action::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> KeepAlive {
        KeepAlive::new(KeepAliveLimits { interval_ms: 10, timeout_ms: 8 }, 100)
    }

    #[test]
    fn silence_is_asked_and_then_ended() {
        let mut alive = machine();
        assert_eq!(alive.tick(109), Action::Wait);
        assert_eq!(alive.tick(110), Action::Ping);
        alive.ping_written(111);
        assert_eq!(alive.tick(118), Action::Wait);
        assert!(matches!(alive.tick(119), Action::Dead(reason) if reason.contains("PING")));
    }

    #[test]
    fn anything_heard_is_an_answer() {
        let mut alive = machine();
        assert_eq!(alive.tick(110), Action::Ping);
        alive.ping_written(110);
        alive.heard(117);
        assert_eq!(alive.tick(126), Action::Wait);
        assert_eq!(alive.tick(127), Action::Ping);
    }

    #[test]
    fn a_ping_behind_a_slow_queue_waits_as_long_as_bytes_go_out() {
        let mut alive = machine();
        assert_eq!(alive.tick(110), Action::Ping);
        alive.progressed(117);
        assert_eq!(alive.tick(124), Action::Wait);
        assert!(matches!(alive.tick(125), Action::Dead(reason) if reason.contains("no bytes")));
    }

    #[test]
    fn a_ping_that_was_answered_before_it_was_noted_asks_nothing() {
        let mut alive = machine();
        assert_eq!(alive.tick(110), Action::Ping);
        alive.heard(111);
        alive.ping_written(112);
        assert_eq!(alive.tick(120), Action::Wait);
        assert_eq!(alive.tick(121), Action::Ping);
    }
}
