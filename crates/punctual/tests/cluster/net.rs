//! A network of the test's own: every broker on a machine of its own, as far as its network goes, and links that can be cut.
//!
//! In: how many machines. Out: an address for each, one for what stands between them (Redis, receivers, callers), and cuts. Made of
//! network namespaces on a bridge, and of nft rules inside them: nothing outside of them changes. Needs root, `ip` and `nft`.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

/// How a broker's link is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Nothing comes or goes.
    Both,
    /// What it says does not arrive.
    Words,
    /// What it is answered does not arrive.
    Answers,
}

/// Machines on a bridge, until dropped.
pub(crate) struct Net {
    name: String,
    subnet: [u8; 2],
    machines: u8,
}

impl Net {
    pub(crate) fn make(machines: u8) -> Self {
        forget_the_dead();
        let process = std::process::id();
        // A part of the private network that few use; another test is another process, with another part.
        let byte = |number: u32| u8::try_from(number).unwrap();
        let subnet = [64 + byte(process / 256 % 64), byte(process % 256)];
        let net = Self { name: format!("pt{process}"), subnet, machines };
        let bridge = &net.name;
        ip(&["link", "add", bridge, "type", "bridge"]);
        ip(&["addr", "add", &format!("{}/24", net.middle()), "dev", bridge]);
        ip(&["link", "set", bridge, "up"]);
        for machine in 0..machines {
            let (name, near, far) = (net.machine(machine), net.end(machine), "eth0");
            ip(&["netns", "add", &name]);
            ip(&["link", "add", &near, "type", "veth", "peer", "name", far, "netns", &name]);
            ip(&["link", "set", &near, "master", bridge, "up"]); // words: allow
            ip(&["-n", &name, "addr", "add", &format!("{}/24", net.address(machine)), "dev", far]);
            ip(&["-n", &name, "link", "set", far, "up"]);
            ip(&["-n", &name, "link", "set", "lo", "up"]);
        }
        net
    }

    /// Where everything is that is not a broker.
    pub(crate) fn middle(&self) -> IpAddr {
        self.at(1)
    }

    pub(crate) fn address(&self, machine: u8) -> IpAddr {
        self.at(machine + 2)
    }

    /// A command that runs on a machine.
    pub(crate) fn command(&self, machine: u8) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.machine(machine)]);
        command
    }

    /// Cuts a machine off some ports in the middle.
    pub(crate) fn cut_from_ports(&self, machine: u8, ports: &[u16], cut: Cut) {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        let (middle, ports) = (self.middle(), ports.join(", "));
        let to = format!("ip daddr {middle} tcp dport {{ {ports} }}");
        let from = format!("ip saddr {middle} tcp sport {{ {ports} }}");
        self.drop(machine, &to, &from, cut);
    }

    /// Cuts a machine off all other machines.
    pub(crate) fn cut_from_others(&self, machine: u8) {
        let others = (0..self.machines).filter(|other| *other != machine);
        let others: Vec<String> = others.map(|other| self.address(other).to_string()).collect();
        let others = others.join(", ");
        let (to, from) = (format!("ip daddr {{ {others} }}"), format!("ip saddr {{ {others} }}"));
        self.drop(machine, &to, &from, Cut::Both);
    }

    /// Nothing is cut any more.
    pub(crate) fn heal(&self, machine: u8) {
        self.nft(machine, "flush ruleset");
    }

    fn drop(&self, machine: u8, to: &str, from: &str, cut: Cut) {
        let mut rules = String::from("table inet cut {\n");
        for (hook, rule, cuts) in
            [("output", to, cut != Cut::Answers), ("input", from, cut != Cut::Words)]
        {
            let rule = if cuts { format!("{rule} drop") } else { String::new() };
            rules += &format!(
                "chain {hook} {{ type filter hook {hook} priority 0; policy accept;\n{rule}\n}}\n"
            );
        }
        self.nft(machine, &(rules + "}"));
    }

    fn nft(&self, machine: u8, rules: &str) {
        let name = self.machine(machine);
        done(Command::new("ip").args(["netns", "exec", &name, "nft", rules]), "nftables");
    }

    fn machine(&self, machine: u8) -> String {
        format!("{}-{machine}", self.name)
    }

    fn end(&self, machine: u8) -> String {
        format!("{}v{machine}", self.name)
    }

    fn at(&self, last: u8) -> IpAddr {
        let [second, third] = self.subnet;
        IpAddr::V4(Ipv4Addr::new(10, second, third, last))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for machine in 0..self.machines {
            let _ = Command::new("ip").args(["netns", "del", &self.machine(machine)]).status();
            let _ = Command::new("ip").args(["link", "del", &self.end(machine)]).output();
        }
        let _ = Command::new("ip").args(["link", "del", &self.name]).output();
    }
}

/// A test that was killed has left its machines.
fn forget_the_dead() {
    let listed = Command::new("ip").args(["netns", "list"]).output().expect("ip is needed");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for name in listed.lines().filter_map(|line| line.split(' ').next()) {
        let process = name.strip_prefix("pt").and_then(|rest| rest.split('-').next());
        let process = process.and_then(|process| process.parse::<u32>().ok());
        if let Some(process) = process
            && !Path::new(&format!("/proc/{process}")).exists()
        {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
            let _ = Command::new("ip").args(["link", "del", &format!("pt{process}")]).output();
        }
    }
}

fn ip(words: &[&str]) {
    done(Command::new("ip").args(words), "iproute2");
}

fn done(command: &mut Command, package: &str) {
    let out = command.output();
    let out = out.unwrap_or_else(|error| panic!("{command:?}: {error}; is {package} installed?"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?} (as root, with {package}): {said}");
}
