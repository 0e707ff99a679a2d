package chain

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
)

// PaymentService is the other side: an HTTP service that pays, and keeps a book. The zero value is ready to use.
//
//	POST /payments          {"reference": 1, "amount": 100}   201: paid; 200: this key was paid before; 422: with another amount
//	GET  /payments?key=...  200: paid; 404: no such payment; 501: cannot tell
//	GET  /book              all payments
//	DELETE /payments?id=... 204: it was refunded, or is not in the book
type PaymentService struct {
	// Keyless makes it a service that neither knows idempotency keys nor can be asked.
	Keyless bool
	// Point is called with AfterPaymentMade when a payment is in the book and the answer is not sent; ctx ends when the
	// client is gone. After an error the connection is closed without an answer.
	Point func(ctx context.Context, name string, ev Event) error

	mu   sync.Mutex
	book []Payment
	last int // id
}

// ServeHTTP answers one request.
func (p *PaymentService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "POST /payments":
		p.pay(w, r)
	case "GET /payments":
		p.lookUp(w, r)
	case "DELETE /payments":
		p.refund(w, r)
	case "GET /book":
		answer(w, http.StatusOK, p.Book())
	default:
		http.NotFound(w, r)
	}
}

// Book returns all payments that were not refunded, oldest first.
func (p *PaymentService) Book() []Payment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Payment{}, p.book...)
}

func (p *PaymentService) pay(w http.ResponseWriter, r *http.Request) {
	var wish Payment
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&wish); err != nil {
		http.Error(w, "no payment", http.StatusBadRequest)
		return
	}
	if !p.Keyless {
		wish.Key = r.Header.Get(KeyHeader)
	}
	made, status := p.enter(wish)
	if p.Point != nil {
		if err := p.Point(r.Context(), AfterPaymentMade, Event{ID: made.Reference, Amount: made.Amount}); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	answer(w, status, made)
}

// enter makes the payment, unless its key has been used.
func (p *PaymentService) enter(wish Payment) (made Payment, status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.find(wish.Key); ok {
		if old.Reference != wish.Reference || old.Amount != wish.Amount {
			return old, http.StatusUnprocessableEntity
		}
		return old, http.StatusOK
	}
	p.last++
	wish.ID = p.last
	p.book = append(p.book, wish)
	return wish, http.StatusCreated
}

func (p *PaymentService) find(key string) (Payment, bool) {
	i := slices.IndexFunc(p.book, func(b Payment) bool { return key != "" && b.Key == key })
	if i < 0 {
		return Payment{}, false
	}
	return p.book[i], true
}

func (p *PaymentService) lookUp(w http.ResponseWriter, r *http.Request) {
	if p.Keyless {
		http.Error(w, "payments cannot be looked up", http.StatusNotImplemented)
		return
	}
	p.mu.Lock()
	made, ok := p.find(r.URL.Query().Get("key"))
	p.mu.Unlock()
	if !ok {
		http.Error(w, "no such payment", http.StatusNotFound)
		return
	}
	answer(w, http.StatusOK, made)
}

func (p *PaymentService) refund(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.book = slices.DeleteFunc(p.book, func(b Payment) bool { return strconv.Itoa(b.ID) == r.URL.Query().Get("id") })
	p.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client is gone: it will ask again
}
