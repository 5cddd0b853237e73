package punctual

import (
	"context"
	"errors"
	"sync"
	"time"
)

// TouchBuffer coalesces touches of watches: many heartbeats of one key within the interval are one
// touch. It sends when the interval is over, when it has as many keys as one request takes, and
// when it is closed.
type TouchBuffer struct {
	client   *Client
	options  []TouchManyOption
	interval time.Duration
	keysMax  int
	onError  func(error)
	onResult func(*TouchManyResult)

	mu     sync.Mutex
	keys   map[string]struct{}
	closed bool
	timer  *time.Timer

	// sending has room for one request in flight, so that touches keep their order.
	sending chan struct{}
}

const (
	touchIntervalDefault = time.Second
	touchKeysDefault     = 1000
	// touchKeysWaiting is how many times keysMax may wait while a request is in flight. Touch
	// waits when there are more.
	touchKeysWaiting = 4
	touchTimeout     = 30 * time.Second
)

// ErrClosed is the error of a touch after [TouchBuffer.Close].
var ErrClosed = errors.New("punctual: the touch buffer is closed")

// A TouchBufferOption configures a [TouchBuffer].
type TouchBufferOption func(*TouchBuffer)

// FlushEvery is how long a touch may wait; the default is a second. A watch is touched that much
// later than its heartbeat, so keep it well below the watch's duration.
func FlushEvery(interval time.Duration) TouchBufferOption {
	return func(b *TouchBuffer) { b.interval = interval }
}

// FlushAt is how many keys are sent at once; the default is 1,000.
func FlushAt(keys int) TouchBufferOption {
	return func(b *TouchBuffer) { b.keysMax = min(max(keys, 1), namesMax) }
}

// TouchWith has the options of each request, usually [Create].
func TouchWith(options ...TouchManyOption) TouchBufferOption {
	return func(b *TouchBuffer) { b.options = options }
}

// OnTouchError is called with the errors of requests. Their keys are dropped: the next heartbeat
// touches them.
func OnTouchError(report func(error)) TouchBufferOption {
	return func(b *TouchBuffer) { b.onError = report }
}

// OnTouched is called with the answer of each request.
func OnTouched(report func(*TouchManyResult)) TouchBufferOption {
	return func(b *TouchBuffer) { b.onResult = report }
}

// TouchBuffer makes a buffer for touches. Close it to send what it has.
func (c *Client) TouchBuffer(options ...TouchBufferOption) *TouchBuffer {
	b := &TouchBuffer{
		client: c, interval: touchIntervalDefault, keysMax: touchKeysDefault,
		onError: func(error) {}, onResult: func(*TouchManyResult) {},
		keys: map[string]struct{}{}, sending: make(chan struct{}, 1),
	}
	for _, option := range options {
		option(b)
	}
	return b
}

// Touch adds a touch of the key. It returns at once, except that it waits for the broker when the
// buffer is full.
func (b *TouchBuffer) Touch(ctx context.Context, key string) error {
	for {
		b.mu.Lock()
		if b.closed {
			b.mu.Unlock()
			return ErrClosed
		}
		_, there := b.keys[key]
		if there || len(b.keys) < touchKeysWaiting*b.keysMax {
			b.keys[key] = struct{}{}
			full := len(b.keys) >= b.keysMax
			if b.timer == nil {
				b.timer = time.AfterFunc(b.interval, func() { b.flush(context.Background()) })
			}
			b.mu.Unlock()
			if full && !there {
				b.flushSoon()
			}
			return nil
		}
		b.mu.Unlock()
		if err := b.Flush(ctx); err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// flushSoon sends in the background, unless a request is in flight; the timer sends what it leaves.
func (b *TouchBuffer) flushSoon() {
	select {
	case b.sending <- struct{}{}:
		go func() {
			defer func() { <-b.sending }()
			b.sendAll(context.Background())
		}()
	default:
	}
}

func (b *TouchBuffer) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, touchTimeout)
	defer cancel()
	_ = b.Flush(ctx)
}

// Flush sends what the buffer has and waits for the answer.
func (b *TouchBuffer) Flush(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case b.sending <- struct{}{}:
	}
	defer func() { <-b.sending }()
	return b.sendAll(ctx)
}

// sendAll sends all keys. The caller has the right to send.
func (b *TouchBuffer) sendAll(ctx context.Context) error {
	b.mu.Lock()
	keys := make([]string, 0, len(b.keys))
	for key := range b.keys {
		keys = append(keys, key)
	}
	clear(b.keys)
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	b.mu.Unlock()
	var failed error
	for len(keys) > 0 {
		size := min(len(keys), b.keysMax)
		result, err := b.client.TouchMany(ctx, keys[:size], b.options...)
		if err != nil {
			failed = errors.Join(failed, err)
			b.onError(err)
		} else {
			b.onResult(result)
		}
		keys = keys[size:]
	}
	return failed
}

// Close sends what the buffer has and refuses further touches.
func (b *TouchBuffer) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	return b.Flush(ctx)
}
