package chain

import "context"

// The types of the patterns that have no other name.
type (
	// Command does something for one event: PlaceOrder, Send and the like.
	Command func(ctx context.Context, s *Service, ev Event) error
	// Charger makes a payment: Charge.
	Charger func(ctx context.Context, s *Service, ev Event) PaymentState
	// Runner runs a relay until ctx ends: RunRelay.
	Runner func(ctx context.Context, s *Service, relay Job) error
	// Retrier handles an event in as many attempts as it takes: Retry.
	Retrier func(ctx context.Context, s *Service, handle Handler, ev Event) (Result, error)
	// Replayer publishes the dead letter of an event again: Replay.
	Replayer func(ctx context.Context, s *Service, event uint64) error
	// Executor does what a task is for: Remind.
	Executor func(ctx context.Context, s *Service, t Task) (Result, error)
	// Scanner looks for tasks that are due: ScanTasks.
	Scanner func(ctx context.Context, s *Service, execute Executor) (int, error)
	// Recorder makes the record of a failure: NewLetter.
	Recorder func(s *Service, ev Event, f Failure) Letter
)

// functions are the patterns and their twins by name.
var functions = map[string]any{
	"PlaceOrder":            Command(PlaceOrder),
	"PlaceOrderThenPublish": Command(PlaceOrderThenPublish),
	"PublishThenPlaceOrder": Command(PublishThenPlaceOrder),
	"PlaceOrderSurely":      Command(PlaceOrderSurely),
	"PlaceOrderBlindly":     Command(PlaceOrderBlindly),
	"PlacePaidOrder":        Command(PlacePaidOrder),
	"PlaceOrderAndPay":      Command(PlaceOrderAndPay),
	"Send":                  Command(Send),
	"SendOrLog":             Command(SendOrLog),
	"SendInTime":            Command(SendInTime),
	"SendWhateverItTakes":   Command(SendWhateverItTakes),
	"SendUntilConfirmed":    Command(SendUntilConfirmed),
	"SendAgainAsNew":        Command(SendAgainAsNew),

	"PlaceTimedOrder":   Command(PlaceTimedOrder),
	"PlaceOrderOnWheel": Command(PlaceOrderOnWheel),
	"PlaceOrderInLog":   Command(PlaceOrderInLog),
	"SendDelayed":       Command(SendDelayed),
	"SendOnWheel":       Command(SendOnWheel),

	"PlaceOrderBetween": Command(PlaceOrderBetween),
	"CheckInTable":      Checker(CheckInTable),
	"CheckInMemory":     Checker(CheckInMemory),
	"CheckHopefully":    Checker(CheckHopefully),

	"ScanTasks":        Scanner(ScanTasks),
	"ScanByOwnClock":   Scanner(ScanByOwnClock),
	"ScanUnclaimed":    Scanner(ScanUnclaimed),
	"ScanWithoutClaim": Scanner(ScanWithoutClaim),

	"Remind":            Executor(Remind),
	"RemindUnfenced":    Executor(RemindUnfenced),
	"RemindHoweverLate": Executor(RemindHoweverLate),
	"CancelUnpaid":      Executor(CancelUnpaid),
	"CancelUnchecked":   Executor(CancelUnchecked),
	"PublishTask":       Executor(PublishTask),

	"PayInTime":  Handler(PayInTime),
	"CancelTask": Handler(CancelTask),
	"MoveTask":   Handler(MoveTask),

	"Relay":             Job(Relay),
	"RelayMarkFirst":    Job(RelayMarkFirst),
	"RelayPastLast":     Job(RelayPastLast),
	"RelayWithoutLanes": Job(RelayWithoutLanes),
	"RelayBelowHorizon": Job(RelayBelowHorizon),
	"RelayPastCursor":   Job(RelayPastCursor),
	"ResendDue":         Job(ResendDue),
	"PurgeInbox":        Job(PurgeInbox),
	"PurgeInboxEarly":   Job(PurgeInboxEarly),
	"Reconcile":         Job(Reconcile),
	"ReportOnly":        Job(ReportOnly),
	"ReconcileByAge":    Job(ReconcileByAge),

	"RunRelay":         Runner(RunRelay),
	"RunRelayGivingUp": Runner(RunRelayGivingUp),

	"ApplyOnce":           Handler(ApplyOnce),
	"ApplyAlways":         Handler(ApplyAlways),
	"ApplyUnlessSeen":     Handler(ApplyUnlessSeen),
	"ApplyForOneConsumer": Handler(ApplyForOneConsumer),
	"ApplyAnyContent":     Handler(ApplyAnyContent),
	"ApplyAfterMark":      Handler(ApplyAfterMark),
	"ApplyThenRemember":   Handler(ApplyThenRemember),
	"ApplyBeforeMark":     Handler(ApplyBeforeMark),
	"ApplyByBusinessKey":  Handler(ApplyByBusinessKey),
	"ApplyWithoutKey":     Handler(ApplyWithoutKey),
	"ApplyState":          Handler(ApplyState),
	"OverwriteState":      Handler(OverwriteState),
	"PayOrder":            Handler(PayOrder),
	"PayOrderAnyway":      Handler(PayOrderAnyway),
	"ApplyWithKey":        Handler(ApplyWithKey),
	"ApplyAfterSetNX":     Handler(ApplyAfterSetNX),
	"ApplyWhileKeyLives":  Handler(ApplyWhileKeyLives),

	"Consume":            Loop(Consume),
	"ConsumeSettleFirst": Loop(ConsumeSettleFirst),
	"ConsumeAndGoOn":     Loop(ConsumeAndGoOn),
	"ConsumeHandingOver": Loop(ConsumeHandingOver),
	"ConsumeParking":     Loop(ConsumeParking),

	"ConsumeInParallel":     Loop(ConsumeInParallel),
	"ConsumeInParallelUpTo": Loop(ConsumeInParallelUpTo),
	"ConsumeCounting":       Loop(ConsumeCounting),
	"ConsumeReturning":      Loop(ConsumeReturning),
	"ConsumeInKeyOrder":     Loop(ConsumeInKeyOrder),
	"ConsumeInTurn":         Loop(ConsumeInTurn),
	"ConsumeMoving":         Loop(ConsumeMoving),
	"ConsumeMovingLate":     Loop(ConsumeMovingLate),

	"SetStateOnce": Handler(SetStateOnce),

	"SettleHere":     Settler(SettleHere),
	"SettleAnywhere": Settler(SettleAnywhere),

	"Charge":           Charger(Charge),
	"ChargeWithoutKey": Charger(ChargeWithoutKey),
	"ChargeOrFail":     Charger(ChargeOrFail),

	"Retry":        Retrier(Retry),
	"RetryForever": Retrier(RetryForever),
	"RetryNever":   Retrier(RetryNever),
	"RetryAsNew":   Retrier(RetryAsNew),

	"Replay":      Replayer(Replay),
	"ReplayAsNew": Replayer(ReplayAsNew),

	"NewLetter":             Recorder(NewLetter),
	"NewLetterWithSecrets":  Recorder(NewLetterWithSecrets),
	"NewLetterWithoutTimes": Recorder(NewLetterWithoutTimes),
}

// Function returns the pattern or twin of that name, if there is one of type F:
//
//	handle, ok := chain.Function[chain.Handler]("ApplyOnce")
func Function[F any](name string) (F, bool) {
	f, ok := functions[name].(F)
	return f, ok
}
