package chain

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
)

// PaymentState is what is known of a payment. The zero value is unknown: no answer is no answer.
type PaymentState string

// The states.
const (
	PaymentUnknown PaymentState = ""             // may be made or not
	PaymentMade    PaymentState = "paid"         // the service says so
	PaymentRefused PaymentState = "refused"      // it says that it will not
	PaymentAbsent  PaymentState = "absent"       // it knows of none, so far
	Unresolvable   PaymentState = "unresolvable" // unknown, and the service has no way to tell
)

// Charge makes the payment of an event, at most once, and says what is known of it in the end.
func Charge(ctx context.Context, s *Service, ev Event) PaymentState {
	key := idempotencyKey(ev) // safe: the same in every attempt, so that the service acts once
	for attempt := 1; attempt <= s.tries() && s.retryPayment(ctx, ev, attempt); attempt++ {
		state := s.Payments.Pay(ctx, key, ev)
		if state == PaymentUnknown {
			state = s.Payments.LookUp(ctx, key) // safe: no answer is not "no": ask what was done
		}
		if state != PaymentAbsent {
			return state
		}
	}
	return PaymentUnknown
}

// ChargeWithoutKey is Charge, but each attempt is a payment of its own.
func ChargeWithoutKey(ctx context.Context, s *Service, ev Event) PaymentState {
	key := "" // unsafe: the service cannot tell a second attempt from a second payment
	for attempt := 1; attempt <= s.tries() && s.retryPayment(ctx, ev, attempt); attempt++ {
		state := s.Payments.Pay(ctx, key, ev)
		if state == PaymentUnknown {
			state = s.Payments.LookUp(ctx, key) // safe: no answer is not "no": ask what was done
		}
		if state != PaymentAbsent {
			return state
		}
	}
	return PaymentUnknown
}

// ChargeOrFail is Charge, but takes a timeout for a failure.
func ChargeOrFail(ctx context.Context, s *Service, ev Event) PaymentState {
	key := idempotencyKey(ev) // safe: the same in every attempt, so that the service acts once
	for attempt := 1; attempt <= s.tries() && s.retryPayment(ctx, ev, attempt); attempt++ {
		state := s.Payments.Pay(ctx, key, ev)
		if state == PaymentUnknown {
			state = PaymentRefused // unsafe: the money may be gone, and the order is cancelled
		}
		if state != PaymentAbsent {
			return state
		}
	}
	return PaymentUnknown
}

// PlacePaidOrder writes an order and the wish to be paid for it. ExecuteIntents makes the payment.
func PlacePaidOrder(ctx context.Context, s *Service, ev Event) error {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.do(ctx, insertOrder)
	w.do(ctx, insertIntent) // safe: nothing is paid before the order is committed, and then under one key
	w.at(ctx, AfterPaymentCall)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.err
}

// PlaceOrderAndPay is PlacePaidOrder, but pays right away.
func PlaceOrderAndPay(ctx context.Context, s *Service, ev Event) error {
	w := s.begin(ctx, ev)
	defer w.end(ctx)
	w.do(ctx, insertOrder)
	w.payNow(ctx) // unsafe: a rollback takes back the order and the key, not the payment; the next attempt pays again
	w.at(ctx, AfterPaymentCall)
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return w.err
}

// ExecuteIntents makes a batch of the payments that are wanted. If it dies on the way they are wanted still, under the same
// keys. The row stays locked during the call, as the claim of this executor: nothing but the intent is in the transaction. What
// stays unknown is tried again, and after the last try is "in doubt": a case for a person, neither done nor failed.
func ExecuteIntents(ctx context.Context, s *Service, charge Charger) (int, error) {
	w := s.begin(ctx, Event{})
	defer w.end(ctx)
	intents := w.read(ctx, `SELECT event_id, key, version, amount, ''::bytea FROM payment_intents
		WHERE status = 'pending' ORDER BY updated_at, event_id LIMIT $1 FOR UPDATE SKIP LOCKED`)
	for _, ev := range intents {
		state := charge(ctx, s, ev)
		w.at(ctx, AfterPaymentCall)
		w.settleIntent(ctx, ev, state)
	}
	w.at(ctx, BeforeBusinessCommit)
	w.commit(ctx)
	w.at(ctx, AfterBusinessCommit)
	return len(intents), w.err
}

var insertIntent = exec(`INSERT INTO payment_intents (event_id, key, version, amount) VALUES ($1, $2, $3, $4)
	ON CONFLICT (event_id) DO NOTHING`, nil)

func (w *work) settleIntent(ctx context.Context, ev Event, state PaymentState) {
	w.do(ctx, func(ctx context.Context, tx pgx.Tx, s *Service, _ Event) error {
		_, err := tx.Exec(ctx, `WITH intent AS (
				UPDATE payment_intents SET attempts = attempts + 1, updated_at = clock_timestamp(), status = CASE
					WHEN $2 IN ('paid', 'refused') THEN $2
					WHEN $2 = 'unresolvable' OR attempts + 1 >= $3 THEN 'in doubt'
					ELSE status END
				WHERE event_id = $1 RETURNING event_id, status)
			UPDATE orders SET state = CASE intent.status WHEN 'paid' THEN 'paid' ELSE 'cancelled' END
			FROM intent WHERE orders.event_id = intent.event_id AND intent.status IN ('paid', 'refused')`,
			int64(ev.ID), string(state), s.tries())
		return err
	})
}

// payNow pays inside of the transaction, under a key that is part of it.
func (w *work) payNow(ctx context.Context) {
	w.do(ctx, func(ctx context.Context, _ pgx.Tx, s *Service, ev Event) error {
		if state := s.Payments.Pay(ctx, fmt.Sprint(s.NewID()), ev); state != PaymentMade {
			return fmt.Errorf("pay: %w", ErrInDoubt)
		}
		return nil
	})
}

// idempotencyKey is a function of the event id: whoever asks for the payment of an event asks for the same payment.
func idempotencyKey(ev Event) string { return fmt.Sprintf("payment-%d", ev.ID) }

// retryPayment waits before all but the first attempt.
func (s *Service) retryPayment(ctx context.Context, ev Event, attempt int) bool {
	return attempt == 1 || s.pause(ctx, ev, attempt-1)
}

// PaymentClient talks to a PaymentService.
type PaymentClient struct {
	URL     string
	HTTP    *http.Client
	Timeout time.Duration // of one request; 0 = 2 s
}

// Payment is one entry of the service's book.
type Payment struct {
	ID        int    `json:"id"`
	Key       string `json:"key"`       // idempotency key; "" = none
	Reference uint64 `json:"reference"` // event id
	Amount    int64  `json:"amount"`
}

// KeyHeader carries the idempotency key.
const KeyHeader = "Idempotency-Key"

// Pay asks for a payment.
func (c *PaymentClient) Pay(ctx context.Context, key string, ev Event) PaymentState {
	wish, err := json.Marshal(Payment{Reference: ev.ID, Amount: ev.Amount})
	if err != nil {
		return PaymentUnknown
	}
	switch status, _ := c.call(ctx, http.MethodPost, "/payments", key, bytes.NewReader(wish)); status {
	case http.StatusOK, http.StatusCreated:
		return PaymentMade
	case http.StatusPaymentRequired, http.StatusUnprocessableEntity:
		return PaymentRefused
	default: // no answer, or one that says nothing about the payment
		return PaymentUnknown
	}
}

// LookUp asks whether there is a payment with this key. PaymentAbsent is true for now only: a request may be on its way.
func (c *PaymentClient) LookUp(ctx context.Context, key string) PaymentState {
	switch status, _ := c.call(ctx, http.MethodGet, "/payments?key="+url.QueryEscape(key), "", http.NoBody); status {
	case http.StatusOK:
		return PaymentMade
	case http.StatusNotFound:
		return PaymentAbsent
	case http.StatusNotImplemented:
		return Unresolvable
	default:
		return PaymentUnknown
	}
}

// Book returns all payments that were not refunded, oldest first.
func (c *PaymentClient) Book(ctx context.Context) ([]Payment, error) {
	status, answer := c.call(ctx, http.MethodGet, "/book", "", http.NoBody)
	if status != http.StatusOK {
		return nil, fmt.Errorf("read book of payments: status %d", status)
	}
	var book []Payment
	if err := json.Unmarshal(answer, &book); err != nil {
		return nil, fmt.Errorf("read book of payments: %w", err)
	}
	return book, nil
}

// Refund takes a payment back. One that is not in the book is no error.
func (c *PaymentClient) Refund(ctx context.Context, id int) error {
	if status, _ := c.call(ctx, http.MethodDelete, fmt.Sprintf("/payments?id=%d", id), "", http.NoBody); status != http.StatusNoContent {
		return fmt.Errorf("refund payment %d: status %d", id, status)
	}
	return nil
}

// call returns the status of the answer, or 0 if there was none.
func (c *PaymentClient) call(ctx context.Context, method, path, key string, body io.Reader) (status int, answer []byte) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Timeout, 2*time.Second))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.URL+path, body)
	if err != nil {
		return 0, nil
	}
	if key != "" {
		request.Header.Set(KeyHeader, key)
	}
	response, err := cmp.Or(c.HTTP, http.DefaultClient).Do(request)
	if err != nil {
		return 0, nil
	}
	defer response.Body.Close()
	if answer, err = io.ReadAll(response.Body); err != nil {
		return 0, nil
	}
	return response.StatusCode, answer
}
