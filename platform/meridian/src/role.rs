//! What a process is made of.

use meridian_settings::{Key, Settings};

/// The roles of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A whole region: metadata, bookies, broker, admin API.
    Standalone,
    /// A broker of a cluster.
    Broker,
    /// A storage node of a cluster.
    Bookie,
    /// Both in one process: the broker calls its own bookie directly.
    Node,
    /// Restores copies of lost bookies, and audits.
    Autorecovery,
}

impl Role {
    /// As the command line names it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Standalone => "standalone",
            Role::Broker => "broker",
            Role::Bookie => "bookie",
            Role::Node => "node",
            Role::Autorecovery => "autorecovery",
        }
    }

    /// Clients connect to it.
    pub fn has_broker(self) -> bool {
        !matches!(self, Role::Bookie | Role::Autorecovery)
    }

    /// It shares metadata with other processes.
    pub fn in_cluster(self) -> bool {
        self != Role::Standalone
    }

    /// It has data of its own.
    pub fn has_folder(self) -> bool {
        !matches!(self, Role::Broker | Role::Autorecovery)
    }

    /// Bookies in the process.
    pub fn bookies(self, settings: &Settings) -> u64 {
        match self {
            Role::Standalone => settings.count(Key::Bookies).max(1),
            Role::Bookie | Role::Node => 1,
            Role::Broker | Role::Autorecovery => 0,
        }
    }
}
