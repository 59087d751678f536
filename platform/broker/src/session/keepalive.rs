//! When a silent connection is asked and when it is given up.
//!
//! Pure: a tick every interval, "something came" in between. The first tick without a finished login, or the tick after an
//! unanswered PING, ends the connection, unless we ourselves have stopped reading.

/// What to do at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAliveStep {
    /// Send a PING.
    Ping,
    /// Nothing: we are not reading.
    Wait,
    /// Close with this reason.
    Close(&'static str),
}

/// The state of one connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeepAlive {
    outstanding: bool,
    seen: u64,
}

impl KeepAlive {
    /// One interval is over; `received` counts everything that came since the connection began.
    pub fn tick(&mut self, logged_in: bool, reading: bool, received: u64) -> KeepAliveStep {
        if !logged_in {
            return KeepAliveStep::Close("no login in time");
        }
        let silent = received == self.seen;
        self.seen = received;
        if !reading {
            self.outstanding = false;
            return KeepAliveStep::Wait;
        }
        if self.outstanding && silent {
            return KeepAliveStep::Close("no answer to PING");
        }
        self.outstanding = true;
        KeepAliveStep::Ping
    }
}

#[cfg(test)]
mod tests {
    use super::KeepAliveStep::{Close, Ping, Wait};
    use super::*;

    #[test]
    fn golden_script() {
        let mut keep_alive = KeepAlive::default();
        let script = [
            // logged in, reading, received → step
            (true, true, 3, Ping),
            (true, true, 4, Ping),
            (true, false, 4, Wait),
            (true, true, 4, Ping),
            (true, true, 4, Close("no answer to PING")),
        ];
        for (at, (logged_in, reading, received, step)) in script.into_iter().enumerate() {
            assert_eq!(keep_alive.tick(logged_in, reading, received), step, "tick {at}");
        }
        assert_eq!(KeepAlive::default().tick(false, true, 9), Close("no login in time"));
    }
}
