package punctual_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	punctual "punctual.dev/go"
	"punctual.dev/go/punctualtest"
	"punctual.dev/go/webhook"
)

// This file has the examples of docs/sdks/go.md, and tests that execute them. The last test checks
// that the document shows exactly this code.

type Order struct {
	ID   int    `json:"order"`
	City string `json:"city,omitempty"`
}

func connect() (*punctual.Client, error) {
	// An empty URL is PUNCTUAL_URL, or http://127.0.0.1:7400. Several brokers: separate by commas.
	return punctual.New("http://127.0.0.1:7400", punctual.Namespace("shop"))
}

func awaitPayment(ctx context.Context, client *punctual.Client, order Order) error {
	_, err := client.Schedule(ctx, fmt.Sprintf("order-%d", order.ID),
		punctual.In(15*time.Minute),
		punctual.ToQueue("unpaid"),
		punctual.JSON(order),
		punctual.Label("city", order.City))
	return err
}

func paid(ctx context.Context, client *punctual.Client, order Order) (string, error) {
	result, err := client.Cancel(ctx, fmt.Sprintf("order-%d", order.ID))
	if err != nil {
		return "", err
	}
	switch result := result.(type) {
	case punctual.Cancelled:
		return "in time: the task never fires", nil
	case punctual.Firing:
		return fmt.Sprintf("attempt %d is in flight", result.Attempt), nil
	case punctual.AlreadyFired:
		return "too late: fired at " + result.At.Format(time.TimeOnly), nil
	default: // punctual.NotFound
		return "no such order", nil
	}
}

func unpaidKeys(ctx context.Context, client *punctual.Client, city string) ([]string, error) {
	var keys []string
	for task, err := range client.List(ctx, punctual.KeyPrefix("order-"), punctual.Label("city", city)) {
		if err != nil {
			return nil, err
		}
		keys = append(keys, task.Key)
	}
	return keys, nil
}

func dailyReport(ctx context.Context, client *punctual.Client) (*punctual.Preview, error) {
	const cron, timezone = "30 2 * * *", "Europe/Berlin"
	_, err := client.Schedule(ctx, "report",
		punctual.Cron(cron, timezone),
		punctual.ToURL("https://api.example/report"),
		punctual.Misfire(punctual.MisfireFireOnce),
		punctual.Overlap(punctual.OverlapSkip))
	if err != nil {
		return nil, err
	}
	// The night of the clock change has no 02:30; the preview says what happens instead.
	from := time.Date(2027, 3, 27, 0, 0, 0, 0, time.UTC)
	return client.Preview(ctx, cron, punctual.PreviewQuery{Timezone: timezone, Count: 2, From: from})
}

func watchUnits(ctx context.Context, client *punctual.Client, heartbeats <-chan string) error {
	// Each key that is touched for the first time gets this watch.
	watch := punctual.Create(punctual.Within(48*time.Hour), punctual.OnReturn(), punctual.ToQueue("silent"))
	buffer := client.TouchBuffer(punctual.TouchWith(watch),
		punctual.FlushEvery(time.Second),
		punctual.OnTouchError(func(err error) { log.Print(err) }))
	for key := range heartbeats {
		if err := buffer.Touch(ctx, key); err != nil {
			return err
		}
	}
	return buffer.Close(ctx)
}

func watchUnitsByRule(ctx context.Context, client *punctual.Client) error {
	_, err := client.PutRule(ctx, "unit:",
		punctual.Within(48*time.Hour), punctual.OnReturn(), punctual.ToQueue("silent"))
	if err != nil {
		return err
	}
	_, err = client.TouchMany(ctx, []string{"unit:7", "unit:8"})
	return err
}

func work(ctx context.Context, client *punctual.Client, bank Bank) error {
	worker := client.Worker(punctual.Concurrency(50), punctual.OnError(func(err error) { log.Print(err) }))
	punctual.HandleResult(worker, "unpaid", func(ctx context.Context, fire punctual.Fire[Order]) (string, error) {
		if fire.Payload.ID <= 0 {
			return "", punctual.Refuse("no such order") // A dead letter at once.
		}
		receipt, err := bank.Refund(ctx, fire.ID, fire.Payload)
		if errors.Is(err, ErrBankClosed) {
			return "", punctual.Retry(30*time.Minute, "the bank is closed")
		}
		return receipt, err // Any other error is retried by the policy of the task.
	})
	punctual.HandlePrefix(worker, "silent", "unit:", func(ctx context.Context, fire punctual.Fire[any]) error {
		log.Printf("%s: %s", fire.Key, fire.Occasion) // due: it is silent. return: it is back.
		return nil
	})
	return worker.Run(ctx) // Until the context ends; then it finishes what is in flight.
}

func webhooks(secret string) (http.Handler, error) {
	receive, err := webhook.Handler(secret, func(ctx context.Context, fire punctual.Fire[Order]) error {
		log.Printf("order %d is not paid, attempt %d", fire.Payload.ID, fire.Attempt)
		return nil
	})
	if err != nil {
		return nil, err
	}
	routes := http.NewServeMux()
	routes.Handle("POST /unpaid", receive)
	return routes, nil
}

func TestAUnitThatIsSilentForTwoDaysIsReportedOnce(t *testing.T) {
	broker := punctualtest.Start(t, punctualtest.Namespace("home"))
	if err := watchUnitsByRule(context.Background(), broker.Client); err != nil {
		t.Fatal(err)
	}
	broker.Advance(47 * time.Hour)
	if _, err := broker.Client.Touch(context.Background(), "unit:8"); err != nil {
		t.Fatal(err)
	}
	broker.Advance(time.Hour)
	if silent := broker.Fired("silent"); len(silent) != 1 || silent[0].Key != "unit:7" {
		t.Errorf("silent: %v", silent)
	}
}

// Bank is what the worker of the example calls.
type Bank interface {
	Refund(ctx context.Context, idempotencyKey string, order Order) (string, error)
}

// ErrBankClosed is an error that the worker of the example knows.
var ErrBankClosed = errors.New("the bank is closed")

// bankThatOpens is closed for the first refund.
type bankThatOpens struct{ calls atomic.Int32 }

func (b *bankThatOpens) Refund(context.Context, string, Order) (string, error) {
	if b.calls.Add(1) == 1 {
		return "", ErrBankClosed
	}
	return "receipt", nil
}

func TestExampleOfConnecting(t *testing.T) {
	if _, err := connect(); err != nil {
		t.Error(err)
	}
}

func TestExampleOfSchedulingAndCancelling(t *testing.T) {
	broker := punctualtest.Start(t)
	for id := range 2 {
		if err := awaitPayment(context.Background(), broker.Client, Order{ID: id + 1, City: "Bern"}); err != nil {
			t.Fatal(err)
		}
	}
	keys, err := unpaidKeys(context.Background(), broker.Client, "Bern")
	if err != nil || strings.Join(keys, " ") != "order-1 order-2" {
		t.Errorf("unpaid: %v, %v", keys, err)
	}
	check := func(id int, want string) {
		t.Helper()
		if got, err := paid(context.Background(), broker.Client, Order{ID: id}); err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("order %d: %q, %v", id, got, err)
		}
	}
	check(1, "in time")
	broker.Advance(15 * time.Minute)
	if fired := broker.Fired("unpaid"); len(fired) != 1 || fired[0].Key != "order-2" {
		t.Errorf("fired: %v", fired)
	}
	broker.Advance(time.Millisecond)
	check(2, "too late")
	check(3, "no such order")
}

func TestExampleOfCron(t *testing.T) {
	broker := punctualtest.Start(t)
	preview, err := dailyReport(context.Background(), broker.Client)
	if err != nil {
		t.Fatal(err)
	}
	if len(preview.Fires) != 2 || preview.Fires[1].Note == "" {
		t.Errorf("preview: %+v", preview.Fires)
	}
}

func TestExampleOfAWatch(t *testing.T) {
	broker := punctualtest.Start(t)
	heartbeats := make(chan string, 3)
	for _, key := range []string{"unit:7", "unit:7", "unit:8"} {
		heartbeats <- key
	}
	close(heartbeats)
	if err := watchUnits(context.Background(), broker.Client, heartbeats); err != nil {
		t.Fatal(err)
	}
	if advanced := broker.Advance(48 * time.Hour); advanced.Fires != 2 {
		t.Errorf("advanced: %+v", advanced)
	}
	if silent := broker.Fired("silent"); len(silent) != 2 {
		t.Errorf("silent: %v", silent)
	}
}

func TestExampleOfAWorker(t *testing.T) {
	broker := punctualtest.Start(t)
	bank := &bankThatOpens{}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- work(ctx, broker.Client, bank) }()
	for _, id := range []int{0, 1} {
		if err := awaitPayment(context.Background(), broker.Client, Order{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	broker.Advance(15 * time.Minute)
	broker.Advance(30 * time.Minute)
	broker.Advance(time.Millisecond)
	history, err := broker.Client.History(context.Background(), "order-1")
	if err != nil || len(history) != 1 || string(history[0].Result) != `"receipt"` || len(history[0].Attempts) != 2 {
		t.Errorf("history: %+v, %v", history, err)
	}
	for letter, err := range broker.Client.Dead(context.Background()) {
		if err != nil || letter.Task.Key != "order-0" || letter.Reason != "refused" {
			t.Errorf("dead letter: %+v, %v", letter, err)
		}
	}
	if stats, err := broker.Client.Stats(context.Background()); err != nil || stats.DeadLetters != 1 {
		t.Errorf("stats: %+v, %v", stats, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestExampleOfWebhooks(t *testing.T) {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	handler, err := webhooks(secret)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	broker := punctualtest.Start(t, punctualtest.Namespace("shop"), punctualtest.Args("--signing-secret", "shop="+secret))
	_, err = broker.Client.Schedule(context.Background(), "order-1", punctual.In(0), punctual.ToURL(server.URL+"/unpaid"), punctual.JSON(Order{ID: 1}))
	if err != nil {
		t.Fatal(err)
	}
	broker.Advance(time.Second)
	task, err := broker.Client.Get(context.Background(), "order-1")
	if err != nil || task.State != punctual.StateDone {
		t.Errorf("task: %+v, %v", task, err)
	}
	unsigned, err := http.Post(server.URL+"/unpaid", "application/json", strings.NewReader(`{"order":1}`))
	if err != nil {
		t.Fatal(err)
	}
	unsigned.Body.Close()
	if unsigned.StatusCode != http.StatusUnauthorized {
		t.Errorf("a webhook without a signature is answered with %s", unsigned.Status)
	}
}

func TestTheDocumentShowsTheExamplesOfThisFile(t *testing.T) {
	source, err := os.ReadFile("examples_test.go")
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("../../docs/sdks/go.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(document), "```go\n")[1:]
	if len(blocks) < 6 {
		t.Errorf("the document has %d blocks of Go", len(blocks))
	}
	for _, block := range blocks {
		code, _, closed := strings.Cut(block, "```")
		if !closed {
			t.Fatal("a block of the document does not end")
		}
		for _, part := range strings.Split(strings.TrimSpace(code), "\n\n") {
			if !strings.Contains(string(source), "\n"+part+"\n") {
				t.Errorf("the document shows code that is not executed:\n%s", part)
			}
		}
	}
}
