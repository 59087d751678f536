//! A server process of this binary, or another program beside it, as a child.
//!
//! Role: starts it with a log file and a ready file, sees whether it lives, ends it by closing its standard input.
//! Failure: its end is an error with the last lines of its log.

use crate::cli::Failure;
use serde_json::Value;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Lines of a log that an error quotes.
const QUOTED_LINES: usize = 5;
/// Most bytes of a log that are read for them.
const QUOTED_BYTES: usize = 4096;

/// Says which option takes other ports, if ports are what is in the way.
pub fn with_free_ports(error: Failure, chosen: bool) -> Failure {
    match !chosen && error.to_string().contains("Address already in use") {
        true => format!("{error}\nWith --free-ports it takes ports that are free.").into(),
        false => error,
    }
}

/// A started process.
pub struct Child {
    name: String,
    shown: String,
    process: std::process::Child,
    log_file: PathBuf,
    ready_file: PathBuf,
    ready: Value,
    ended: bool,
}

impl Child {
    /// Starts a server of this binary over `DIR/<name>`.
    ///
    /// # Errors
    /// The process or its log file can't be made.
    pub fn start(name: &str, role: &str, folder: &Path, options: &[String]) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(role).args(["--data-dir".as_ref(), folder.join(name).as_os_str()]);
        command.args(options);
        Self::spawn(name, folder, command)
    }

    /// Starts a program that takes `--ready-file` and `--end-with-stdin`; its log goes to `DIR/<name>.log`.
    ///
    /// # Errors
    /// The process or its log file can't be made.
    pub fn spawn(name: &str, folder: &Path, mut command: Command) -> Result<Self, Failure> {
        let (log_file, ready_file) = (folder.join(format!("{name}.log")), folder.join(format!("{name}.ready")));
        let _ = std::fs::remove_file(&ready_file);
        let log = File::options().create(true).append(true).open(&log_file);
        let log = log.map_err(|error| format!("{}: {error}", log_file.display()))?;
        let process = command
            .args(["--ready-file".as_ref(), ready_file.as_os_str()])
            .arg("--end-with-stdin")
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A Ctrl-C in the terminal goes to this process alone, which then ends the children in order.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        Ok(Self {
            name: name.to_owned(),
            shown: name.to_owned(),
            process,
            log_file,
            ready_file,
            ready: Value::Null,
            ended: false,
        })
    }

    /// How errors call it, instead of by its name.
    pub fn called(self, shown: String) -> Self {
        Self { shown, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its log is.
    pub fn log_file(&self) -> &Path {
        &self.log_file
    }

    /// What it said when it was ready.
    pub fn ready(&self) -> &Value {
        &self.ready
    }

    /// A port out of what it said.
    ///
    /// # Errors
    /// It listens on no such port.
    pub fn port(&self, name: &str) -> Result<u16, Failure> {
        let found = self.ready[name].as_u64().and_then(|port| u16::try_from(port).ok());
        found.ok_or_else(|| format!("{} has no {name}", self.shown).into())
    }

    /// Whether it answers.
    ///
    /// # Errors
    /// It ended instead.
    pub fn is_ready(&mut self) -> Result<bool, Failure> {
        self.check()?;
        if self.ready.is_null()
            && let Ok(text) = std::fs::read_to_string(&self.ready_file)
        {
            // Another program may write its address alone.
            self.ready = serde_json::from_str(&text).unwrap_or(Value::String(text));
        }
        Ok(!self.ready.is_null())
    }

    /// An error if it ended.
    ///
    /// # Errors
    /// With its exit status and the end of its log.
    pub fn check(&mut self) -> Result<(), Failure> {
        let Some(status) = self.process.try_wait()? else { return Ok(()) };
        self.ended = true;
        Err(format!("{} ended with {status}; {} ends with\n{}", self.shown, self.log_file.display(), self.tail())
            .into())
    }

    fn tail(&self) -> String {
        let content = std::fs::read(&self.log_file).unwrap_or_default();
        let text = String::from_utf8_lossy(&content[content.len().saturating_sub(QUOTED_BYTES)..]).into_owned();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
    }

    /// Closes its standard input: it stops accepting and drains.
    pub fn ask_to_end(&mut self) {
        self.process.stdin.take();
    }

    /// Waits for its end; after `limit` it is killed.
    ///
    /// # Errors
    /// It had to be killed, or did not end cleanly.
    pub fn wait(&mut self, limit: Duration) -> Result<(), Failure> {
        let begun = Instant::now();
        while !self.ended {
            if let Some(status) = self.process.try_wait()? {
                self.ended = true;
                return if status.success() { Ok(()) } else { Err(self.unclean(&status.to_string())) };
            }
            if begun.elapsed() > limit {
                self.process.kill()?;
                self.process.wait()?;
                return Err(self.unclean(&format!("a kill after {limit:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn unclean(&self, how: &str) -> Failure {
        format!("{} ended with {how}; see {}", self.shown, self.log_file.display()).into()
    }
}
