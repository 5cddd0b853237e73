//! A network of network namespaces: each broker has a machine of its own, and links can be cut.
//!
//! The namespaces hang on one bridge. The bridge has the address of everything that is not a broker
//! (Redis, receivers, callers). Links are cut by nft rules inside the namespaces; nothing outside
//! of them changes. Needs root, `ip` and `nft`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which packets of a machine are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkCut {
    Both,
    /// Those that the machine sends.
    Outgoing,
    /// Those that it would receive.
    Incoming,
}

/// Machines on a bridge, until dropped.
pub struct TestNetwork {
    name: String,
    subnet: [u8; 2],
    machines: u8,
}

impl TestNetwork {
    pub fn make(machines: u8) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_left_over();
        let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // Networks of tests that run at the same time have different names and subnets.
        let byte = |number: u32| u8::try_from(number).unwrap();
        let number = process.wrapping_mul(4).wrapping_add(next);
        let subnet = [64 + byte(number / 256 % 64), byte(number % 256)];
        let net = Self { name: format!("pt{process}n{next}"), subnet, machines };
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

    /// The address of everything that is not a broker.
    pub fn middle(&self) -> IpAddr {
        self.at(1)
    }

    pub fn address(&self, machine: u8) -> IpAddr {
        self.at(machine + 2)
    }

    /// Returns a command that runs the rest of its words on a machine.
    pub fn command(&self, machine: u8) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.machine(machine)]);
        command
    }

    /// Cuts a machine off from some ports of the middle.
    pub fn cut_from_ports(&self, machine: u8, ports: &[u16], cut: LinkCut) {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        let (middle, ports) = (self.middle(), ports.join(", "));
        let to = format!("ip daddr {middle} tcp dport {{ {ports} }}");
        let from = format!("ip saddr {middle} tcp sport {{ {ports} }}");
        self.drop(machine, &to, &from, cut);
    }

    /// Cuts a machine off from all other machines.
    pub fn cut_from_others(&self, machine: u8) {
        let others = (0..self.machines).filter(|other| *other != machine);
        let others: Vec<String> = others.map(|other| self.address(other).to_string()).collect();
        let others = others.join(", ");
        let (to, from) = (format!("ip daddr {{ {others} }}"), format!("ip saddr {{ {others} }}"));
        self.drop(machine, &to, &from, LinkCut::Both);
    }

    /// Removes all cuts of a machine.
    pub fn heal(&self, machine: u8) {
        self.nft(machine, "flush ruleset");
    }

    fn drop(&self, machine: u8, to: &str, from: &str, cut: LinkCut) {
        let mut rules = String::from("table inet cut {\n");
        for (hook, rule, cuts) in
            [("output", to, cut != LinkCut::Incoming), ("input", from, cut != LinkCut::Outgoing)]
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
        run(Command::new("ip").args(["netns", "exec", &name, "nft", rules]), "nftables");
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

impl Drop for TestNetwork {
    fn drop(&mut self) {
        for machine in 0..self.machines {
            let _ = Command::new("ip").args(["netns", "del", &self.machine(machine)]).status();
            let _ = Command::new("ip").args(["link", "del", &self.end(machine)]).output();
        }
        let _ = Command::new("ip").args(["link", "del", &self.name]).output();
    }
}

/// Removes the networks of tests that were killed.
fn remove_left_over() {
    let listed = Command::new("ip").args(["netns", "list"]).output().expect("ip is needed");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for name in listed.lines().filter_map(|line| line.split(' ').next()) {
        let Some((network, _)) = name.split_once('-') else { continue };
        let process = network.strip_prefix("pt").and_then(|rest| rest.split('n').next());
        let process = process.and_then(|process| process.parse::<u32>().ok());
        if let Some(process) = process
            && !Path::new(&format!("/proc/{process}")).exists()
        {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
            let _ = Command::new("ip").args(["link", "del", network]).output();
        }
    }
}

fn ip(words: &[&str]) {
    run(Command::new("ip").args(words), "iproute2");
}

fn run(command: &mut Command, package: &str) {
    let out = command.output();
    let out = out.unwrap_or_else(|error| panic!("{command:?}: {error}; is {package} installed?"));
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?} (as root, with {package}): {errors}");
}
