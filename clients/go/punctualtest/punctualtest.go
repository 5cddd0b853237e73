// Package punctualtest starts a real broker with a virtual clock for tests. It needs the binary
// `punctual`: the environment variable PUNCTUAL_BIN has its path, or it is in PATH.
package punctualtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	punctual "punctual.dev/go"
)

const (
	// startTimeout is how long a broker may take to listen, on a busy machine.
	startTimeout = 30 * time.Second
	// callTimeout bounds every call of this package.
	callTimeout = 60 * time.Second
	// logBytesMax is how much of a broker's log is kept for a test that fails.
	logBytesMax = 64 << 10
	// firedMax is how many deliveries one call of Fired leases.
	firedMax = 1000
)

// Broker is a broker with a virtual clock that runs until the test ends.
type Broker struct {
	// URL is where the broker listens.
	URL string
	// Client is a client of the namespace, "test" unless [Namespace] says otherwise.
	Client *punctual.Client

	t testing.TB
}

// settings are what options choose.
type settings struct {
	clock     time.Time
	namespace string
	args      []string
	client    []punctual.Option
}

// An Option configures [Start].
type Option func(*settings)

// Clock is when the virtual clock starts.
func Clock(at time.Time) Option { return func(s *settings) { s.clock = at } }

// Namespace is the namespace of the client.
func Namespace(name string) Option { return func(s *settings) { s.namespace = name } }

// Args are further arguments of the broker.
func Args(args ...string) Option { return func(s *settings) { s.args = append(s.args, args...) } }

// ClientOptions are further options of the client.
func ClientOptions(options ...punctual.Option) Option {
	return func(s *settings) { s.client = append(s.client, options...) }
}

// Binary returns the path of the binary `punctual`, or fails the test.
func Binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("PUNCTUAL_BIN"); path != "" {
		return path
	}
	path, err := exec.LookPath("punctual")
	if err != nil {
		t.Fatal("punctualtest: PUNCTUAL_BIN is not set and `punctual` is not in PATH")
	}
	return path
}

// Start starts a broker with a virtual clock (`punctual dev`) and stops it when the test ends.
func Start(t testing.TB, options ...Option) *Broker {
	t.Helper()
	chosen := settings{namespace: "test"}
	for _, option := range options {
		option(&chosen)
	}
	// The broker ends with its standard input, even if the test is killed.
	args := []string{"dev", "--listen", "127.0.0.1:0", "--exit-with-stdin"}
	if !chosen.clock.IsZero() {
		args = append(args, "--clock", chosen.clock.UTC().Format(time.RFC3339))
	}
	command := exec.Command(Binary(t), append(args, chosen.args...)...)
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	log := &tail{}
	command.Stderr = log
	if err := command.Start(); err != nil {
		t.Fatalf("punctualtest: %v", err)
	}
	t.Cleanup(func() {
		stop(command)
		if t.Failed() {
			t.Logf("log of the broker:\n%s", log)
		}
	})
	url, err := readURL(stdout)
	if err != nil {
		t.Fatalf("punctualtest: `punctual dev` did not start: %v\n%s", err, log)
	}
	clientOptions := append([]punctual.Option{punctual.Namespace(chosen.namespace)}, chosen.client...)
	client, err := punctual.New(url, clientOptions...)
	if err != nil {
		t.Fatal(err)
	}
	return &Broker{URL: url, Client: client, t: t}
}

// readURL reads lines until one is JSON with the URL of the broker, and discards the output behind it
// so that the broker never waits for its output.
func readURL(stdout io.Reader) (string, error) {
	type found struct {
		url string
		err error
	}
	result := make(chan found, 1)
	go func() {
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			var line struct {
				URL string `json:"url"`
			}
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.URL != "" {
				result <- found{url: line.URL}
				_, _ = io.Copy(io.Discard, stdout)
				return
			}
		}
		result <- found{err: fmt.Errorf("it printed no URL")}
	}()
	select {
	case got := <-result:
		return got.url, got.err
	case <-time.After(startTimeout):
		return "", fmt.Errorf("it printed no URL within %s", startTimeout)
	}
}

func stop(command *exec.Cmd) {
	_ = command.Process.Signal(syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		_ = command.Process.Kill()
		<-ended
	}
}

// Advance moves the clock. It returns when everything that became due was delivered, and settled
// as far as workers and webhooks settle it.
func (b *Broker) Advance(by time.Duration) *punctual.Advanced {
	b.t.Helper()
	return b.advance(punctual.Advance{By: by})
}

// AdvanceTo moves the clock to a time.
func (b *Broker) AdvanceTo(at time.Time) *punctual.Advanced {
	b.t.Helper()
	return b.advance(punctual.Advance{To: at})
}

func (b *Broker) advance(step punctual.Advance) *punctual.Advanced {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	advanced, err := b.Client.AdvanceClock(ctx, step)
	if err != nil {
		b.t.Fatalf("punctualtest: advance: %v", err)
	}
	return advanced
}

// Now is the time of the virtual clock.
func (b *Broker) Now() time.Time {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	clock, err := b.Client.Clock(ctx)
	if err != nil {
		b.t.Fatalf("punctualtest: clock: %v", err)
	}
	return clock.Now
}

// Fired takes the deliveries that wait in a queue, acknowledges them, and returns them.
func (b *Broker) Fired(queue string) []punctual.Delivery {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var fired []punctual.Delivery
	for {
		got, err := b.Client.Lease(ctx, queue, punctual.LeaseRequest{Max: firedMax, Lease: time.Minute})
		if err != nil {
			b.t.Fatalf("punctualtest: lease from queue %q: %v", queue, err)
		}
		if len(got) == 0 {
			return fired
		}
		tokens := make([]string, len(got))
		for i, delivery := range got {
			tokens[i] = delivery.Token
		}
		if _, err := b.Client.Ack(ctx, queue, tokens...); err != nil {
			b.t.Fatalf("punctualtest: ack in queue %q: %v", queue, err)
		}
		fired = append(fired, got...)
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *tail) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text.Len()+len(data) > logBytesMax {
		t.text.Reset()
	}
	t.text.Write(data)
	return len(data), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(t.text.String())
}
