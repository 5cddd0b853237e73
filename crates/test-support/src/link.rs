//! A link to a server that a test can make silent or cut: a small TCP proxy.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Passes connections on to a port of loopback.
pub struct CutLink {
    pub port: u16,
    shared: Arc<LinkShared>,
}

#[derive(Default)]
struct LinkShared {
    state: Mutex<LinkState>,
    changed: Condvar,
}

#[derive(Default)]
struct LinkState {
    /// Answers of the server wait.
    silent: bool,
    /// New connections end at once.
    cut: bool,
    open: Vec<TcpStream>,
}

impl CutLink {
    /// Starts a link to a port.
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let own = listener.local_addr().expect("an address").port();
        let shared: Arc<LinkShared> = Arc::default();
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
                let mut state = accepting.state.lock().unwrap();
                if state.cut {
                    continue;
                }
                let copy = |stream: &TcpStream| stream.try_clone().expect("a socket");
                state.open.extend([copy(&near), copy(&far)]);
                drop(state);
                let (near_copy, far_copy) = (copy(&near), copy(&far));
                thread::spawn(move || pass(near_copy, far_copy, |_| ()));
                let waiting = Arc::clone(&accepting);
                thread::spawn(move || pass(far, near, |_| waiting.wait_unless_silent()));
            }
        });
        Self { port: own, shared }
    }

    /// Holds the answers of the server back; what clients send still arrives.
    pub fn silence(&self) {
        self.shared.state.lock().unwrap().silent = true;
    }

    /// Ends all connections, and refuses new ones. Answers that were held back are lost.
    pub fn cut(&self) {
        let mut state = self.shared.state.lock().unwrap();
        state.cut = true;
        for stream in state.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }

    /// Passes everything on again.
    pub fn mend(&self) {
        let mut state = self.shared.state.lock().unwrap();
        (state.silent, state.cut) = (false, false);
        self.shared.changed.notify_all();
    }
}

impl LinkShared {
    fn wait_unless_silent(&self) {
        let state = self.state.lock().unwrap();
        let is_silent = |state: &mut LinkState| state.silent && !state.cut;
        drop(self.changed.wait_while(state, is_silent).unwrap());
    }
}

/// Copies bytes until either side closes.
fn pass(mut from: TcpStream, mut to: TcpStream, before_write: impl Fn(usize)) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        before_write(count);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
