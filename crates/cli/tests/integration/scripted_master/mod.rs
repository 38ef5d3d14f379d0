//! A master for tests: answers tasks over HTTP and speaks with agents over a websocket, on one port.
#![expect(clippy::unwrap_used, reason = "a part of tests")]
#![allow(dead_code, reason = "each test file uses some of it")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use instep_api::link::{Hello, Order, PATH, Report, Welcome};
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

/// What was sent to the master so far.
#[derive(Default)]
pub struct Seen {
    /// The text of every line of output, with its rank.
    pub lines: Vec<(Option<i64>, String)>,
    /// Other requests, as `METHOD path`.
    pub requests: Vec<String>,
    /// Tokens of allocations that were shown.
    pub tokens: Vec<String>,
}

/// See the module.
pub struct Master {
    pub address: String,
    pub seen: Arc<Mutex<Seen>>,
    connections: mpsc::Receiver<Connection>,
    /// Answered to requests for a context.
    pub context: Arc<Mutex<Vec<u8>>>,
    /// Whether agents are let in.
    pub refuses: Arc<Mutex<Option<String>>>,
}

/// An agent's connection, after its hello.
pub struct Connection {
    pub hello: Hello,
    socket: WebSocket<TcpStream>,
}

impl Master {
    pub fn start() -> Master {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (seen, context) = (Arc::<Mutex<Seen>>::default(), Arc::<Mutex<Vec<u8>>>::default());
        let refuses = Arc::<Mutex<Option<String>>>::default();
        let (sender, connections) = mpsc::channel();
        let theirs = (Arc::clone(&seen), Arc::clone(&context), Arc::clone(&refuses));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, context, refuses) = (Arc::clone(&theirs.0), Arc::clone(&theirs.1), Arc::clone(&theirs.2));
                let sender = sender.clone();
                thread::spawn(move || serve(stream, &seen, &context, &refuses, &sender));
            }
        });
        Master { address, seen, connections, context, refuses }
    }

    /// The next agent that says hello, welcomed.
    pub fn agent(&self, window_seconds: u32) -> Connection {
        let mut connection = self.connections.recv_timeout(Duration::from_secs(30)).expect("an agent connects");
        let welcome =
            Welcome { master_id: "m".to_owned(), cluster_id: "c".to_owned(), window_seconds, ping_seconds: 1 };
        connection.order(&Order::Welcome(welcome));
        connection
    }

    /// All output of tasks so far, as one text.
    pub fn output(&self) -> String {
        self.seen.lock().unwrap().lines.iter().map(|(_, text)| text.as_str()).collect()
    }
}

impl Connection {
    pub fn order(&mut self, order: &Order) {
        self.socket.send(Message::text(serde_json::to_string(order).unwrap())).unwrap();
    }

    /// The next report, or nothing within the time.
    pub fn report(&mut self, patience: Duration) -> Option<Report> {
        let end = Instant::now() + patience;
        while Instant::now() < end {
            self.socket.get_ref().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            match self.socket.read() {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(text.as_str()).unwrap()),
                Ok(_) => {}
                Err(tungstenite::Error::Io(_)) => {}
                Err(_) => return None,
            }
        }
        None
    }
}

fn serve(
    stream: TcpStream,
    seen: &Mutex<Seen>,
    context: &Mutex<Vec<u8>>,
    refuses: &Mutex<Option<String>>,
    agents: &mpsc::Sender<Connection>,
) {
    let mut beginning = vec![0; 4 + PATH.len()];
    let full = |stream: &TcpStream, buffer: &mut [u8]| {
        (0..200).any(|_| {
            thread::sleep(Duration::from_millis(1));
            stream.peek(buffer).is_ok_and(|count| count == buffer.len())
        })
    };
    if full(&stream, &mut beginning) && beginning.ends_with(PATH.as_bytes()) {
        let refusal = refuses.lock().unwrap().clone();
        if let Some(why) = refusal {
            let body = json!({"error": {"code": 16, "reason": "x", "error": why}}).to_string();
            let answer = format!("HTTP/1.1 401 x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            // Closing with something unread would take the answer back; and it goes as one, as a real master's does.
            request(&mut BufReader::new(&stream));
            let _ = (&stream).write_all(answer.as_bytes());
            return;
        }
        let mut socket = tungstenite::accept(stream).unwrap();
        let Ok(Message::Text(text)) = socket.read() else { return };
        let Ok(Report::Hello(hello)) = serde_json::from_str(text.as_str()) else { panic!("{text}") };
        let _ = agents.send(Connection { hello, socket });
        return;
    }
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some((first, headers, body)) = request(&mut reader) {
        let answer = answer(&first, &headers, &body, seen, context).to_string();
        let _ = write!(&stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
    }
}

fn request(reader: &mut impl BufRead) -> Option<(String, BTreeMap<String, String>, Vec<u8>)> {
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|count| *count > 0)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((first.rsplit_once(' ').unwrap().0.to_owned(), headers, body))
}

fn answer(
    first: &str,
    headers: &BTreeMap<String, String>,
    body: &[u8],
    seen: &Mutex<Seen>,
    context: &Mutex<Vec<u8>>,
) -> Value {
    let mut seen = seen.lock().unwrap();
    seen.tokens.extend(headers.get("grpc-metadata-x-allocation-token").cloned());
    if first.ends_with("/task/logs") {
        let body: Value = serde_json::from_slice(body).unwrap();
        for record in body["logs"].as_array().unwrap() {
            seen.lines.push((record["rank_id"].as_i64(), record["log"].as_str().unwrap().to_owned()));
        }
        return json!({});
    }
    seen.requests.push(first.to_owned());
    if first.ends_with("/context_directory") {
        let archive = context.lock().unwrap();
        return json!({"b64Tgz": base64::engine::general_purpose::STANDARD.encode(&*archive)});
    }
    if first.ends_with("/rendezvous") {
        return json!({"rendezvousInfo": {"addresses": ["127.0.0.1"], "rank": 0, "slots": [2]}});
    }
    json!({})
}
