//! A server that answers requests from a script.
#![expect(clippy::unwrap_used, reason = "a part of tests")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use instep_client::{Client, Settings};
use serde_json::Value;

/// What the server does with one request.
#[allow(dead_code, reason = "each test file uses some of them")]
pub enum Answer {
    /// Answers with a status and JSON.
    Json(u16, Value),
    /// Answers with text.
    Text(&'static str),
    /// Closes the connection instead of answering.
    HangUp,
}

/// Answers requests in order, each on a connection of its own or not, as the client likes; gives what was asked.
pub fn serve(answers: Vec<Answer>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let mut asked = Vec::new();
        let mut answers = answers.into_iter().peekable();
        while answers.peek().is_some() {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while let Some(request) = read_request(&mut reader) {
                asked.push(request);
                match answers.next() {
                    None | Some(Answer::HangUp) => break,
                    Some(Answer::Json(status, body)) => respond(&stream, status, &body.to_string()),
                    Some(Answer::Text(text)) => respond(&stream, 200, text),
                }
                if answers.peek().is_none() {
                    break;
                }
            }
        }
        asked
    });
    (address, server)
}

fn read_request(reader: &mut impl BufRead) -> Option<String> {
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|count| *count > 0)?;
    let (mut length, mut token) = (0, String::new());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim().to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
        if let Some(value) = line.strip_prefix("authorization: bearer ") {
            token = format!(" as {value}");
        }
        if let Some(value) = line.strip_prefix("grpc-metadata-x-allocation-token: bearer ") {
            token = format!(" for {value}");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let words: Vec<&str> = first.split(' ').collect();
    Some(format!("{} {}{token} {}", words[0], words[1], String::from_utf8(body).unwrap()).trim().to_owned())
}

fn respond(mut stream: &TcpStream, status: u16, body: &str) {
    write!(stream, "HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
}

/// A client of it.
pub fn client(address: &str, timeout: Duration) -> Client {
    Client::new(Settings { timeout, ..Settings::at(address.parse().unwrap()) }).unwrap()
}
