package main

import (
	"math/rand/v2"
	"strconv"
	"strings"
)

// dice draws at random; the same seed and step give the same draws.
type dice struct {
	*rand.Rand
	focus string // what this seed's cluster has more of, so that rare things come together
}

// focuses take turns from seed to seed.
var focuses = []string{"", focusSpread, focusAffinity, focusPreemption, focusVolumes, focusDevices, focusSets}

const (
	focusSpread, focusAffinity, focusPreemption, focusVolumes = "spread", "affinity", "preemption", "volumes"
	focusDevices, focusSets                                   = "devices", "sets"
)

func roll(seed, step uint64) dice {
	d := rand.New(rand.NewPCG(seed, step)) //nolint:gosec // it is to be repeated, not to be secret
	return dice{d, focuses[seed%uint64(len(focuses))]}
}

// often is true once in n times; three times out of four in a cluster with this focus, and rarely in one with another.
func (d dice) often(n int, what string) bool {
	switch d.focus {
	case "":
		return d.chance(n)
	case what:
		return !d.chance(4)
	}
	return d.chance(4 * n)
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

// upTo returns a number in [0, most], as text.
func (d dice) upTo(most int) string { return strconv.Itoa(d.IntN(most + 1)) }
