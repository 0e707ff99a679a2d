//go:build race

package rocketmq

// raced says that the race detector is on.
const raced = true
