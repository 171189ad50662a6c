"""What a log tells, for people: the story of a job, in the terminal and as one HTML page. See docs/story.md."""
