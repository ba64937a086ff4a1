// Package seeds plays random things one after the other. A seed plays one of them again.
package seeds

import "fmt"

// Play plays count seeds from the first one on, and prints the reports of those in which something differed. It ends
// after so many of these (most), and with the first error.
func Play(first uint64, count, most int, play func(seed uint64) (report string, err error)) (played, different int, err error) {
	for i := range count {
		seed := first + uint64(i) //nolint:gosec // i is not negative
		report, err := play(seed)
		if err != nil {
			return played, different, fmt.Errorf("seed %d: %w", seed, err)
		}
		if played++; report == "" {
			continue
		}
		fmt.Println(report)
		if different++; different >= most {
			break
		}
	}
	return played, different, nil
}
