//! A channel to a port, as `ssh -L` and editors use it. The server connects with the rights of the task, so that nothing can be
//! reached but what the task reaches itself.

use std::sync::Arc;
use std::time::Duration;

use russh::server::Msg;
use russh::{Channel, ChannelMsg};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use super::gate::Gate;
use super::session::{drain, feed};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);

/// Connects to a port.
pub(crate) async fn connect(host: &str, port: u32) -> Option<TcpStream> {
    let port = u16::try_from(port).ok()?;
    tokio::time::timeout(CONNECT, TcpStream::connect((host, port))).await.ok()?.ok()
}

/// Carries bytes between a channel and a port, until both have ended or the channel is closed.
pub(crate) async fn carry(channel: Channel<Msg>, stream: TcpStream, gate: Arc<Gate>) {
    let (mut read, write) = channel.split();
    let (from_port, to_port) = stream.into_split();
    let (input, queue) = mpsc::unbounded_channel();
    let fed = tokio::spawn(feed(queue, Some(to_port), Arc::clone(&gate)));
    // Here there is no program whose end would end it.
    let (_alive, never) = watch::channel(false);
    let drained = async {
        drain(from_port, write.make_writer(), never, Arc::clone(&gate)).await;
        let _ = write.eof().await;
    };
    let mut input = Some(input);
    let taken = async {
        while let Some(message) = read.wait().await {
            match message {
                ChannelMsg::Data { data } => {
                    gate.enter(data.len());
                    if let Err(unsent) =
                        input.as_ref().map_or(Err(mpsc::error::SendError(data.clone())), |i| i.send(data))
                    {
                        gate.leave(unsent.0.len());
                    }
                }
                ChannelMsg::Eof => input = None,
                ChannelMsg::Close => return,
                _ => {}
            }
        }
    };
    tokio::select! {
        () = drained => {}
        () = taken => fed.abort(),
    }
    let _ = write.close().await;
}
