package punctual

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// process is a server that a test has started.
type process struct {
	url     string
	command *exec.Cmd
	log     *bytes.Buffer
	ended   chan struct{}
}

func binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("PUNCTUAL_BIN"); path != "" {
		return path
	}
	path, err := exec.LookPath("punctual")
	if err != nil {
		t.Fatal("PUNCTUAL_BIN is not set and `punctual` is not in PATH")
	}
	return path
}

func freePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// run starts a server and kills it when the test ends.
func run(t testing.TB, name string, args ...string) *process {
	t.Helper()
	p := &process{command: exec.Command(name, args...), log: &bytes.Buffer{}, ended: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = p.log, p.log
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.command.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			log := p.log.String()
			t.Logf("log of %s:\n%s", name, log[max(0, len(log)-4000):])
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.command.Process.Signal(syscall.SIGKILL)
	<-p.ended
}

// startServe starts a broker on a directory of its own.
func startServe(t testing.TB, args ...string) *process {
	t.Helper()
	return serveAt(t, freePort(t), t.TempDir(), args...)
}

func serveAt(t testing.TB, port int, directory string, args ...string) *process {
	t.Helper()
	listen := "127.0.0.1:" + strconv.Itoa(port)
	args = append([]string{"serve", "--listen", listen, "--data-dir", directory}, args...)
	p := run(t, binary(t), args...)
	p.url = "http://" + listen
	p.awaitReady(t)
	return p
}

// awaitReady waits until the broker is ready, for half a minute at most.
func (p *process) awaitReady(t testing.TB) {
	t.Helper()
	client := newClient(t, p.url, NoDiscovery())
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_, err := client.Ready(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(fmt.Errorf("broker %s is not ready: %w", p.url, err))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func newClient(t testing.TB, url string, options ...Option) *Client {
	t.Helper()
	client, err := New(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
