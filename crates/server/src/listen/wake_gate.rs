//! Polls a future only when it was woken.
//!
//! A connection is polled for every request; what ends it, a drain or another stranger, almost
//! never happens. Polling the futures that wait for that takes locks which all connections share.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// A future that is polled only after it was woken, and when its task has another waker.
pub(super) struct WakeGate<F> {
    future: Pin<Box<F>>,
    signal: Arc<WakeSignal>,
    /// The waker of `signal`, which the future gets.
    waker: Waker,
    /// The waker that `signal` has.
    task: Waker,
}

struct WakeSignal {
    is_woken: AtomicBool,
    task: Mutex<Waker>,
}

impl Wake for WakeSignal {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.lock().unwrap_or_else(PoisonError::into_inner).wake_by_ref();
    }
}

impl<F: Future> WakeGate<F> {
    pub(super) fn new(future: F) -> Self {
        let task = Waker::noop().clone();
        let signal = WakeSignal { is_woken: AtomicBool::new(true), task: Mutex::new(task.clone()) };
        let signal = Arc::new(signal);
        let waker = Waker::from(Arc::clone(&signal));
        Self { future: Box::pin(future), signal, waker, task }
    }
}

impl<F: Future> Future for WakeGate<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        if !this.task.will_wake(cx.waker()) {
            this.task.clone_from(cx.waker());
            let mut task = this.signal.task.lock().unwrap_or_else(PoisonError::into_inner);
            task.clone_from(cx.waker());
            drop(task);
            // It may have been woken before, which the new waker has not seen.
            this.signal.is_woken.store(true, Ordering::Release);
        }
        if !this.signal.is_woken.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        this.future.as_mut().poll(&mut Context::from_waker(&this.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::oneshot;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_future_is_polled_when_it_was_woken_or_its_task_is_another() {
        let polls = Arc::new(Count::default());
        let (sender, mut receiver) = oneshot::channel::<u8>();
        let counted = Arc::clone(&polls);
        let mut gate = Box::pin(WakeGate::new(std::future::poll_fn(move |cx| {
            counted.0.fetch_add(1, Ordering::SeqCst);
            Pin::new(&mut receiver).poll(cx)
        })));
        let count = || polls.0.load(Ordering::SeqCst);
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let (a, b) = (Waker::from(Arc::clone(&first)), Waker::from(Arc::clone(&second)));
        for _ in 0..3 {
            assert!(gate.as_mut().poll(&mut Context::from_waker(&a)).is_pending());
        }
        assert_eq!(count(), 1, "not woken");
        assert!(gate.as_mut().poll(&mut Context::from_waker(&b)).is_pending());
        assert_eq!(count(), 2, "another task");
        sender.send(7).unwrap();
        assert_eq!((first.0.load(Ordering::SeqCst), second.0.load(Ordering::SeqCst)), (0, 1));
        let result = gate.as_mut().poll(&mut Context::from_waker(&b));
        assert_eq!(result, Poll::Ready(Ok(7)));
        assert_eq!(count(), 3);
    }
}
