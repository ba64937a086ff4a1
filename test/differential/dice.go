package main

import (
	"math/rand/v2"
	"strconv"
	"strings"
)

// dice draws at random; the same seed and step give the same draws.
type dice struct{ *rand.Rand }

func roll(seed, step uint64) dice {
	return dice{rand.New(rand.NewPCG(seed, step))} //nolint:gosec // it is to be repeated, not to be secret
}

// chance is true once in n times.
func (d dice) chance(n int) bool { return d.IntN(n) == 0 }

// some returns each value with the probability 1/n.
func some[T any](d dice, n int, values ...T) []T {
	var out []T
	for _, v := range values {
		if d.chance(n) {
			out = append(out, v)
		}
	}
	return out
}

// one returns one of the values.
func one[T any](d dice, values ...T) T { return values[d.IntN(len(values))] }

// word returns one of the words of a text.
func (d dice) word(text string) string { return one(d, strings.Fields(text)...) }

// between returns a number in [least, most], as text.
func (d dice) between(least, most int, unit string) string {
	return strconv.Itoa(least+d.IntN(most-least+1)) + unit
}
